"""diffusers: the denoiser of a pipeline is compiled; the scheduler stays in Python."""

import torch
from diffusers import DDIMScheduler, UNet2DModel

model = UNet2DModel(
    sample_size=16,
    block_out_channels=(32, 32),
    layers_per_block=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).eval()
scheduler = DDIMScheduler(num_train_timesteps=100)
scheduler.set_timesteps(3)


@torch.no_grad()
def sample(denoise):
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for t in scheduler.timesteps:
        x = scheduler.step(denoise(x, t).sample, t, x).prev_sample
    return x


torch.testing.assert_close(
    sample(torch.compile(model, backend="polyfuse")), sample(model), rtol=1e-3, atol=1e-4
)
