"""Sums of products under a window, as depthwise convolutions have them, some neighbouring points at a time.

`problem` recognises such a kernel, `text` writes it.
"""
