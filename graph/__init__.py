"""The ONNX model: its graph, its Quantize sites, and what the documented fusion rules say of them."""
