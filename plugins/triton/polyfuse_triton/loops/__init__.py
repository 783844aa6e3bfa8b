"""A kernel of loops as the text of one Triton function: indices, loads, stores, scalar operations.

`kernel` begins at a `Kernel`; `coordinates` and `indexing` give a program's indices, `memory` and `ops` write
statements, `scope` holds the values known at a point of the text. States that outlive a tile are in
`reductions`, sizes of tiles in `tiling`.
"""
