"""Launchers of built kernels: object files brought into the process, calls, GPU streams.

`objects` and `executable_memory` load object files, `launcher` and `device_launcher` call them. Packages use
it too, so it imports neither Halide nor the generator.
"""
