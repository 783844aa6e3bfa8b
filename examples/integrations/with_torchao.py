"""torchao: weights of linear layers in int8; their dequantization is compiled with the model."""

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).eval()
quantize_(model, Int8WeightOnlyConfig())
x = torch.randn(8, 64)
with torch.no_grad():
    compiled = torch.compile(model, backend="polyfuse")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
