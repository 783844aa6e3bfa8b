"""Convolution networks by name, with the layers, activations and widths that published ones have.

`layers` has what they share, `residual`, `mobile` and `classic` those that classify images, `dense` those
that give an image, and `signals` those over time or space.
"""

from polyfuse_bench.models.convolutions.registry import CONVOLUTION_NETWORKS

__all__ = ["CONVOLUTION_NETWORKS"]
