"""Matmuls as C++: operands packed or read in place, register tiles, split-K.

`problem` says what a matmul computes, `paths` and `plans` how it is run, `kernel` is its text, of which
`operand_a` and `operand_b` pack or read what is multiplied; `groups` has convolutions along lines of images.
Epilogues are statements like any others: `loops` writes them. Calls of libraries are not here (`onednn`).
"""
