"""Candidates made by CUTLASS's own templates: their text, builds and launches.

`candidates` lists them; `collective` (Hopper) and `ampere` write their texts, `stream_k` sizes their scratch,
`launcher` calls the shared objects. All that includes CUTLASS's headers is here, and own kernels are not.
"""
