"""Attention of bf16 in matrix registers: `lowering` says which calls, `kernel` makes, builds and calls it."""
