"""Quantization in the three steps of the DeepHealth paper, from float32 ONNX to an ONNX QDQ graph.

1. Weights are scaled to [-1, 1], layer by layer, without any change of the network's output (`rescale`).
2. Each activation gets a clipping threshold from its values on the calibration windows (`thresholds`).
3. Weights become int8, biases int16, activations 8 bits, with one 8-bit rescale factor per layer (`qdq`).

`integer` computes the result with integers only, and `run` compares both. C code, HLS, RTL and FPGA boards are out of scope.

Source: The DeepHealth HPC Infrastructure: Leveraging Heterogenous HPC and Cloud Computing Infrastructures for IA-based Medical
Solutions, book chapter 10, quantization after training.
"""
