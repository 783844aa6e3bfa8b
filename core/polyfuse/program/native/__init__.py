"""Host programs in the form that backends print in their own languages (`polyfuse.plugin.host`).

`lowering.py` takes the steps of a program in order, `code.py` holds what they became, `memory.py` says which
tensors are plain memory, and `tables.py` carries out a native program's requests in Python.
"""
