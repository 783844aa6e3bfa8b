"""The pool of threads in which kernels share their work, in programs in which nothing else computes:
`pool.cpp`, and `source`, which builds and loads it. These threads also compute checksums of parameters:
`checksum.cpp`. No kernel's text depends on it: kernels are given it when
they are bound.
"""
