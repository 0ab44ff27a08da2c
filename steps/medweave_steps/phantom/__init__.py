"""Synthetic chest CT: a pure generator of volumes and labels, and the writers that turn them into DICOM."""
