"""Operators that read elsewhere than they write, at positions that are known: views, concatenation,
padding, pooling, resampling.
"""
