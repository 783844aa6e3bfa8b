"""A kernel as the text of a program that builds its Halide pipeline."""
