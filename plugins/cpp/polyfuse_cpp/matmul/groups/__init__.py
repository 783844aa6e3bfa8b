"""Convolutions of groups of channels, each with weights of its own, and of all channels as one group, tile by
tile along the lines of an image.

`lines` says which tiles there are, and which of them are a part of one line of the image; `text` makes the
kernel.
"""
