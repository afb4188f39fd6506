"""fusescope: why quantizing a model does not make its TensorRT engine faster, and what would."""

__version__ = "0.1.0"
