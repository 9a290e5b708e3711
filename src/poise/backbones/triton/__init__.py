"""Triton kernels of transformer blocks, and the fused forward pass that uses them."""
