"""Scalar functions and conversions with eager mode's results, as Halide expressions."""
