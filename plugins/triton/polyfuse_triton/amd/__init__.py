"""Kernels for AMD's GPUs, compiled and not run: `chips` are those known, `compile` makes their code, and
``python -m polyfuse_triton.amd KERNEL.ir`` does it for a kernel of a dump.

None of this was run on hardware. The backend itself serves NVIDIA's GPUs alone.
"""
