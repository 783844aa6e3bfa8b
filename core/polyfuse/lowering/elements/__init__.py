"""Operators that compute each element from elements at the same index, and tensors made of nothing."""
