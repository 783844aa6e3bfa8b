"""Pipelines, reductions and scans on GPUs, as generated programs call them.

`pipeline` launches stages, `reduce` and `scan` work by the threads of a block, `math` has what a GPU computes
otherwise. What CPU and GPU share stays one folder up.
"""
