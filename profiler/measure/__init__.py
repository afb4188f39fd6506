"""Measuring on a GPU: launches timed by CUDA events, in interleaved blocks, under conditions that are written down."""
