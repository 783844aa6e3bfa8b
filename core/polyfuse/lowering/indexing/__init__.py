"""Reads and writes at indices given by data: gather, scatter, search, and checks of their range. Indices
that follow from the position alone are views (`lowering.shapes`).
"""
