"""A kernel of loops as the text of one Triton function: indices, loads, stores, scalar operations."""
