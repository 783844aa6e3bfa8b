"""GEMM kernels for Hopper as CUDA text: main loop, epilogue, row statistics, grouped GEMM."""
