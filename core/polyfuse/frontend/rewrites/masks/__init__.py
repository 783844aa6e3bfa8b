"""Masks of attention that a model computes from positions.

`positions` finds which values of a graph follow from positions alone; `causal` calls attention without a mask
where that is the causal one.
"""
