"""Convolutions of groups of channels, each with weights of its own, as one matmul a group.

`lines` says which tiles there are, and which of them are a part of one line of the image; `text` makes the
kernel.
"""
