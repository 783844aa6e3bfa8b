"""Operators that stay calls: library calls, fallbacks to eager mode, effects, collectives, subgraphs.

Also what a call writes to: clones, mutation, overwriting.
"""
