"""Converts the ONNX encoder of a model profile into what an NPU runs."""
