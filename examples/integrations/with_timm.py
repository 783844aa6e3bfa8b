"""timm: inference of an image model, batch normalizations folded into convolutions."""

import timm
import torch

model = timm.create_model("resnet18", pretrained=False).eval()
images = torch.randn(2, 3, 64, 64)
with torch.no_grad():
    compiled = torch.compile(model, backend="polyfuse", options={"freezing": True})
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-3, atol=1e-4)
