"""Kernels whose axes are cut into parts, each with statements of its own."""
