"""Triton kernels for transformer blocks."""
