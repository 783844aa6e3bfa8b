"""Attention of few queries over a cache of keys and values, as when a model decodes: `lowering` takes the
library's operators where `tiles` expects to be faster, `kernel` writes the text.
"""
