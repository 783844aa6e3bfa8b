"""Rewrites of reductions for a device before fusion: split ones, column reductions, those begun in a
GEMM's kernel. How a kernel reduces is its backend's affair.
"""
