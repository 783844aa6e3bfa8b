"""Compiling kernels: nvcc or NVRTC, and what a build leaves behind. Runs in build workers.

Texts come from `codegen` and `attention`; compilers are found and run by `polyfuse_cuda`.
"""
