"""The Halide backend of Polyfuse: kernels as Halide pipelines, compiled by the LLVM in Halide's wheel.

`manifest`, `backend` and `claims` are what the core asks, `fusion_rules` what it should not fuse, `toolchain`
runs in a build worker. A kernel is text by `codegen`, which calls `library`, is scheduled by `schedules`, and
called by `launch`. Only `library`, and what the worker imports, may import Halide: a process that compiles or
runs graphs has none.
"""
