"""Flexible attention: forward and backward kernels with the user's score functions inside.

`lowering` takes the operator, whose problem `polyfuse_cuda.flex` reads from it; `scores` writes the user's
functions, `text` what the kernels share, `forward` and `gradients` the kernels. Plain attention is not here:
torch's own is called.
"""
