"""Attention in captured graphs.

`spelled` finds it where a model spells it out, or repeats keys and values, and calls the library's.
`flexible` spells out `flex_attention` on the CPU.
"""
