"""accelerate: the backend by its name, once it is registered; `Trainer` takes it too."""

import torch
from accelerate import Accelerator

from polyfuse.integrations.accelerate import register

register()
accelerator = Accelerator(cpu=True, dynamo_backend="polyfuse")

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
x = torch.randn(64, 16)
wanted = model(x)
prepared = accelerator.prepare(model)
torch.testing.assert_close(prepared(x), wanted)
