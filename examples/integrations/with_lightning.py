"""Lightning: a module whose network is compiled, trained by a Trainer."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)
        self.network = torch.compile(torch.nn.Sequential(*layers), backend="polyfuse")
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.network(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
module = Regression()
trainer = lightning.Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(data, batch_size=64))
assert module.losses[-1] < module.losses[0]
