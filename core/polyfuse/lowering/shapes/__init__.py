"""Operators that read elsewhere than they write: views, concatenation, padding, pooling, resampling."""
