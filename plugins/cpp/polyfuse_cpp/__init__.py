"""Polyfuse backend that generates C++ for the CPU.

`manifest`, `backend` and `generator` are what the core asks; `tiling` and `loop_estimate` choose how a
kernel's loops run, `toolchain`, `isa` and `prelude` build it, `bindings` and `loading` make it callable.
`onednn` offers the library's matmuls and convolutions as choices. Texts of kernels are in
`loops`, `memory` and `matmul`, those of whole programs in `native_host`: no module here writes any. Nothing
of it knows a GPU.
"""
