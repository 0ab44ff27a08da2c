"""A trained model as ONNX and OpenVINO IR, with the parity of the three checked."""
