"""From a torch model to a quantized ONNX model: export, half precision, scales, Q/DQ insertion."""
