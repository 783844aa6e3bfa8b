"""Flexible attention: forward and backward kernels with the user's score functions inside.

`lowering` takes the operator, whose problem `polyfuse.flex` reads from it, and writes the forward's
kernel, `gradients` the backward's, `scores` the user's functions, `text` what the kernels share. Plain
attention is not here: torch's own is called.
"""
