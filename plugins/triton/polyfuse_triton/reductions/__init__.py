"""Reductions and scans as Triton text: within a program, over several passes, across programs."""
