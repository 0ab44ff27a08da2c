"""Cache of step outputs, by content: outputs of earlier jobs are stored, and linked into the folder of a later identical job."""
