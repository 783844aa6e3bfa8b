"""A simulated accelerator. `import polyfuse_sim` gives torch two devices, `sim:0` and `sim:1`.

`runtime.cpp` is what a vendor's driver and torch extension would be, `torch_module.py` becomes `torch.sim`,
`device.py` tells Polyfuse about the device, `codegen.py` and `backend.py` generate kernels for it.
"""

import torch

from polyfuse_sim import torch_module

torch.utils.rename_privateuse1_backend("sim")
torch._register_device_module("sim", torch_module)
torch.utils.generate_methods_for_privateuse1_backend()
