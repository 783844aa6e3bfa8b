"""Convolutions of bf16 under windows in the machine's matrix registers: `padded` says how the image is copied
so that rows of all tiles lie one distance apart, `text` makes the kernel.
"""
