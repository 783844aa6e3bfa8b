"""Loads and stores as C++: indices, vectors, register transposes, interleaving, streaming stores.

`access` has every load and store, from an `address` or one for each of the `lanes`; the other modules are
special ways to do many at once. No loops are opened here but those of a tile, and nothing is computed but
indices.
"""
