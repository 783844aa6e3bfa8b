import polyfuse_sim  # noqa: F401 - gives torch the device
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).to("sim")
compiled = torch.compile(model, backend="polyfuse", mode="reduce-overhead")
compiled(torch.randn(4, 8, device="sim")).sum().backward()
