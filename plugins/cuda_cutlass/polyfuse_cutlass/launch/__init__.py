"""Launching built kernels through the CUDA driver.

`driver` names the functions that are called, `launcher` makes tensor maps and arguments. It is imported to
run packages, so it imports neither generator nor compiler.
"""
