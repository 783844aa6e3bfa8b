"""A fine-tuning loop as in torchtune: layers compiled in place and recomputed, gradients accumulated."""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

model = nn.Sequential(
    nn.Embedding(64, 32),
    *(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(3)),
    nn.Linear(32, 64),
)
for layer in model[1:-1]:
    layer.compile(backend="polyfuse")
for position in range(1, 4):
    model[position] = checkpoint_wrapper(model[position])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

tokens = torch.randint(0, 64, (4, 2, 12))
losses = []
for _ in range(5):
    total = 0.0
    for batch in tokens:
        logits = model(batch).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, batch.flatten()) / len(tokens)
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(total)
assert losses[-1] < losses[0]
