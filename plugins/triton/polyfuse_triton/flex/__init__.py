"""Flexible attention: forward and backward kernels with the user's score functions inside."""
