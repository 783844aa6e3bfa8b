"""Flexible attention on Hopper: the forward kernel, with the user's score functions inside.

`lowering` takes the operator, `tiles` says how it is cut, `scores` writes the user's functions, `kernel` the
text around them. What is refused here is computed by the backend in charge.
"""
