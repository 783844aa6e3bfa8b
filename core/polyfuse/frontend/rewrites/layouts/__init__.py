"""Layouts of a whole graph, chosen for its convolutions."""

from polyfuse.frontend.rewrites.layouts.channels_last import spread_channels_last

__all__ = ["spread_channels_last"]
