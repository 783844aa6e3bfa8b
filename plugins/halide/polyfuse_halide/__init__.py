"""The Halide backend of Polyfuse: kernels as Halide pipelines, compiled by the LLVM in Halide's wheel."""
