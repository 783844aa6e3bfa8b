"""Compiling kernels: nvcc or NVRTC, headers, and what a build leaves behind. Runs in build workers."""
