"""Matmuls as C++: operands packed or read in place, register tiles, split-K."""
