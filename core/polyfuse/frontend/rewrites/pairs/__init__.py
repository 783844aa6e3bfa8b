"""Arithmetic on complex tensors as arithmetic on pairs of real ones, which kernels compute.

`regions` finds the calls for which that pays; `parts` has the arithmetic, operator by operator.
"""
