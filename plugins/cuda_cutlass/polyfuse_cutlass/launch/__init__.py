"""Launching built kernels through the CUDA driver.

`launcher` names the functions that are called, and makes tensor maps and arguments. It is imported to run
packages, so it imports neither generator nor compiler.
"""
