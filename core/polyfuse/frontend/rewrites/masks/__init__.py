"""Masks of attention that a model computes from positions.

`positions` finds which values of a graph follow from positions alone; `calls` calls attention without a mask
where that hides nothing, or is the causal one.
"""
