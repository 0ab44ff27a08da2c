"""From prepared cases to classes with calibrated probabilities, as a table and as DICOM objects."""
