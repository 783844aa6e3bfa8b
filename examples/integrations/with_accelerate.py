"""accelerate: a training step of a compiled model."""

import torch
from accelerate import Accelerator

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(torch.compile(model, backend="polyfuse"), optimizer)

x, y = torch.randn(64, 16), torch.randn(64, 1)
losses = []
for _ in range(5):
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0]
