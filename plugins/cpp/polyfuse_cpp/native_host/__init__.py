"""Native host programs: the steps between kernels as C++, and models that run without Python.

`program` and `text` serve a host program inside Python; `model_text`, `model_sizes` and `model_requests` a
package that runs without; `series` is a table of launches for a Python program. The fixed C++ is in
`host/` and `model/` beside them. Kernels are not written here, only called.
"""
