"""Loads and stores as C++: indices, vectors, register transposes, interleaving, streaming stores."""
