"""A script with Lightning: automatic optimization, so that the optimizer is given a closure."""

import json
import sys

import lightning
import torch

torch.set_num_threads(1)
lightning.seed_everything(0)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

        self.truth = []

    def training_step(self, batch, _index):
        x, y = batch
        self.loss = (self.net(x) - y).pow(2).mean()
        return self.loss

    def on_before_optimizer_step(self, optimizer):
        norms = [p.grad.norm() for p in self.parameters()]
        self.truth.append((self.loss.item(), torch.stack(norms).norm().item()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


x = torch.randn(4000, 8)
y = x.sum(1, keepdim=True).sin()
x[1234] = float("nan")
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
module = Module()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, loader)
finite = all(bool(torch.isfinite(p).all()) for p in module.parameters())
print(json.dumps({"finite": finite, "overnight": "overnight" in sys.modules}))
print(json.dumps(module.truth))
