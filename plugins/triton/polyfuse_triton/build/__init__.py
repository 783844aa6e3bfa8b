"""From Triton text to machine code. Runs in build workers, without a GPU.

`toolchain` is called there, `pipeline` and `assembler` do the work, `meta` and `artifact` say how to launch
what came out.
"""
