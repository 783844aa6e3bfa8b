"""Reductions of several nodes: split reductions and scans, column reductions, GEMM epilogue reductions."""
