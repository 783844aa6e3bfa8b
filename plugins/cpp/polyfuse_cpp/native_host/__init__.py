"""Models that run without Python: the steps between kernels as C++, and what offers them as a function.

The fixed C++ beside them is in `host/` and `model/`. Kernels are not written here, only called.
"""
