"""Native host programs: the steps between kernels as C++, and models that run without Python.

`program` and `text` serve a host program inside Python; `model_text`, `model_sizes` and `model_requests` a
package that runs without. The fixed C++ beside them is in `host/` and `model/`. Kernels are not written here,
only called.
"""
