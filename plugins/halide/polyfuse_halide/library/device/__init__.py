"""Pipelines, reductions and scans on GPUs, as generated programs call them.

`pipeline` launches stages, `reduce` has what the threads of a block do together, `math` what a GPU computes
otherwise. What CPU and GPU share stays one folder up.
"""
