"""A backend that comes with Polyfuse is wrong in one way, and the option `check` reports it."""

# begin: lying
import torch

from polyfuse.testing import lying_installed

x = torch.randn(4, 8)
model = torch.nn.Softmax(-1)
with lying_installed():
    options = {"backends": ["lying"], "lying.backend": "cpp", "lying.defect": "stale-row", "check": "first"}
    y = torch.compile(model, backend="polyfuse", options=options)(x)
torch.testing.assert_close(y, model(x))
