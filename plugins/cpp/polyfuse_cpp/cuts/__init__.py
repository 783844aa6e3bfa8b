"""Kernels whose axes are cut into parts, each with statements of its own: `ranges` and `residues` of an
axis, `neighbours` done together, and `copying`, which makes the statements. The text of a part is `loops`'
affair.
"""
