"""CUDA graphs (device graphs): recording a compiled program's launches once and replaying them. Which
parts of a program can be recorded was decided before (`program.partitions`).
"""
