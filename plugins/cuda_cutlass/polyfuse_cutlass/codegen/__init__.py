"""GEMM kernels for Hopper as CUDA text: main loop, epilogue, row statistics, grouped GEMM.

`hopper` has the frame of a kernel, `epilogue` and its special forms (`rounded`, `row_statistics`) what is
done with sums, `grouped` GEMMs of groups of rows. Text alone: nothing here compiles or launches.
"""
