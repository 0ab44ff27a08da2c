"""DICOM images: headers, geometry, pixels and series."""
