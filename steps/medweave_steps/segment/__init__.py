"""From prepared cases to lesion masks, tables and DICOM objects on the grid of the source."""
