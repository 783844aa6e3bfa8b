"""Matrix multiplications on NVIDIA GPUs from generated CUDA C++, as a Polyfuse backend.

`claims` and `problem` tell which kernels are GEMMs, `tiling` and `space` how one may be cut, `target` for
which GPU; `backend`, `manifest` and `loading` are what the core asks. Own kernels are written in `codegen`,
those of CUTLASS's templates in `templates`; `build` compiles both, `launch` runs the own ones. What any
plugin for NVIDIA GPUs needs is in `polyfuse_cuda`, not here.
"""
