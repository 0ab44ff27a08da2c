"""2-D images: photographs (JPEG, PNG) and radiographs (DICOM CR, DX and MG)."""
