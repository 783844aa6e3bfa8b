"""The choice of a tiling: its data, candidates, and estimates of their time and registers.

`plan` is the data, `choice` asks `pointwise` or `reduction`, and `estimates` and `register_pressure` say
what is likely fast. No text is written here, and no matmul is tiled (`matmul/tiling.py`).
"""
