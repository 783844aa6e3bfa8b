"""What the machine's matrix registers multiply in forms of its own.

Convolutions of bf16 under windows: `padded` says how the image is copied so that rows of all tiles lie one
distance apart, `text` makes the kernel. Weights of linear layers that are read as they are: `turned`,
and `rows_once`, its kernel without batches.
"""
