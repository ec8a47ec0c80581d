"""Kernels for CUDA devices and their launchers: Triton, and CUDA C++ through NVRTC where Triton is too slow."""
