"""diffusers: the blocks that a denoiser repeats are compiled once, by `compile_repeated_blocks`."""

import torch
from diffusers import UNet2DConditionModel

model = UNet2DConditionModel(
    sample_size=8,
    in_channels=4,
    out_channels=4,
    block_out_channels=(32, 32),
    layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=8,
).eval()
images, words = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)
with torch.no_grad():
    wanted = model(images, 7, words).sample
    model.compile_repeated_blocks(backend="polyfuse", fullgraph=True)
    torch.testing.assert_close(model(images, 7, words).sample, wanted, rtol=1e-3, atol=1e-4)
