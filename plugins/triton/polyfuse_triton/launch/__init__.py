"""Launchers of built kernels: native and plain Python. Nothing here imports Triton.

`launcher` chooses between `native` and `plain`, `services` has what both need of torch, `loading` opens
packages. What a kernel's arguments mean is written by the generator (`build/meta.py`), and never guessed
here.
"""
