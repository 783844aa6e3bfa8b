"""Calls of flexible attention, for those who bring kernels of it.

`call` reads the operator's arguments, `problem` is what they say, `joint` takes the gradients of the user's
functions apart, `lowering` is what calls of all kernels begin with.
"""
