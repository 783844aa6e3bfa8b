"""Reductions and scans as Triton text: within a program, over several passes, across programs.

`reduce` and `scans` write them; `row_buffers`, `row_groups`, `row_splits`, `cluster` and `lookback` are ways
to divide long or many rows, `passes` saves walks over memory. Tiles of such kernels are chosen in
`tiling/reduction.py`.
"""
