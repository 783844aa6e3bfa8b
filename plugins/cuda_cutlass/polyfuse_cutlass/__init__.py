"""Matrix multiplications on NVIDIA GPUs from generated CUDA C++, as a Polyfuse backend.

`claims` and `problem` tell which kernels are GEMMs, `tiling` and `space` how one may be cut, `target` for
which GPU; `backend`, `manifest` and `loading` are what the core asks. Kernels are written in `codegen` and
`attention`, compiled by `build`, and run by `launch`. What any plugin for NVIDIA GPUs needs is in
`polyfuse_cuda`, not here.
"""
