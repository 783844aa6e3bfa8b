"""A server without a framework: programs are made for the sizes to come, then threads answer requests."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import polyfuse

model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).eval()
served = torch.compile(model, backend="polyfuse", dynamic=True, options={"sizes": [8, 64, 512]})


@torch.inference_mode()
def answer(rows: int) -> torch.Tensor:
    x = torch.ones(rows, 16) / rows
    torch.testing.assert_close(served(x), model(x), rtol=1e-4, atol=1e-5)
    return served(x)


answer(2)  # compiles, before requests come
ready = polyfuse.metrics().programs
with ThreadPoolExecutor(4) as threads:
    answers = list(threads.map(answer, (3, 5, 17, 100, 300, 8, 64, 511)))
assert [len(found) for found in answers] == [3, 5, 17, 100, 300, 8, 64, 511]
assert polyfuse.metrics().programs == ready
