"""The pool of threads that kernels share their work in, in programs in which nothing else computes: `pool.cpp`, and
`source`, which builds and loads it. No kernel's text depends on it: it is given to kernels when they are bound.
"""
