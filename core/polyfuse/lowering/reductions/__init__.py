"""Reductions and scans along dimensions, and matmuls and convolutions as loops (`gemm_loops`). Whether a
library or a kernel computes these is not decided here (`autotune`).
"""
