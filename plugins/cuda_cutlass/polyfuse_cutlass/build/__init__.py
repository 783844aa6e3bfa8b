"""Compiling kernels: nvcc or NVRTC, headers, and what a build leaves behind. Runs in build workers.

Texts come from `codegen` and `templates`; compilers are found and run by `polyfuse_cuda`.
"""
