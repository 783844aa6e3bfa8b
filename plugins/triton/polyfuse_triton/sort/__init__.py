"""Sorting and top-k of rows that fit in registers.

`kernel` is the template and its text, `keys` the order of numbers. Longer rows are sorted by torch.
"""
