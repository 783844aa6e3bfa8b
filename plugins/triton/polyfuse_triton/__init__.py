"""The Triton backend of Polyfuse: kernels for NVIDIA GPUs.

`manifest`, `backend` and `codegen` are what the core asks, `target` and `target_info` what a GPU
is, `template` how kernels with a frame of their own are built. Text is written in `loops`, `reductions`,
`matmul`, `sort` and `flex`, chosen in `tiling`, compiled in `build`, launched by `launch`; `device` is what
it calls. Triton itself is imported by `build`, `amd` and modules of device functions alone.
"""
