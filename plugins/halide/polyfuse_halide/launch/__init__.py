"""Launchers of built kernels: object files brought into the process, calls, GPU streams."""
