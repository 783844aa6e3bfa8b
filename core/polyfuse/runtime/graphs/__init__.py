"""CUDA graphs (device graphs): recording a compiled program's launches once and replaying them."""
