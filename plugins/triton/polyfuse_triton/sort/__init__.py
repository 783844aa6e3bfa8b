"""Sorting and top-k of rows that fit in registers."""
