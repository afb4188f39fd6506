"""Readers of what TensorRT records, one module per format."""
