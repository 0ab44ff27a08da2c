"""The libraries that run a network: OpenVINO, ONNX Runtime and torch, each behind `inference.engine.Engine`."""
