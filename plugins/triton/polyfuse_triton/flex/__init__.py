"""Flexible attention: forward and backward kernels with the user's score functions inside.

`lowering` takes the operator, `problem` is its data, `scores` and `joint` the user's functions and their
gradients, `kernel` the text. Plain attention is not here: torch's own is called.
"""
