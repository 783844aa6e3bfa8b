"""Calls of flexible attention, for those who bring kernels of it.

`call` reads the operator's arguments, and takes the gradients of the user's functions apart, `problem` is
what they say, `lowering` is what calls of all kernels begin with; `expected` and `bounded` are what kernels
have to give, in f64.
"""
