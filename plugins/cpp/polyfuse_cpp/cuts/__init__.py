"""Kernels whose axes are cut into parts, each with statements of its own: `ranges` and `residues` of an
axis, `neighbours` done together, `copying`, which makes the statements, and their `order`. The text of a part
is `loops`' affair.
"""
