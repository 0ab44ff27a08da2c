"""DICOM results of any task: what they copy from the source images, and the parts that their objects have in common."""
