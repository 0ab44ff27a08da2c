"""Readers and writers of the formats that steps share: DICOM, NIfTI, prepared cases, models."""
