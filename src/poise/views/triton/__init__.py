"""Views made by Triton kernels on CUDA."""
