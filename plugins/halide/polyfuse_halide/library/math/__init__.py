"""Scalar functions and conversions with eager mode's results, as Halide expressions.

One module for each family of functions, over `polynomials`. Expressions of one element only: no stages, no
schedules.
"""
