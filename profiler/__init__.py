"""Engines: building them, reading what the compiler says of them, and attributing their kernels."""
