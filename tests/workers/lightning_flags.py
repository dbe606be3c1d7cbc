"""Lightning, told to resume by two flags; its weights go NaN once. It prints nothing: metrics go to
its own CSV file."""

import argparse
import json
import sys
from pathlib import Path

import lightning
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--ckpt")
parser.add_argument("--lr-scale", type=float, default=1.0)
flags = parser.parse_args()
torch.set_num_threads(1)
lightning.seed_everything(0)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, _index):
        x, y = batch
        loss = (self.net(x) - y).pow(2).mean()
        lr = self.optimizers().param_groups[0]["lr"]
        self.log_dict({"train_loss": loss, "lr": lr}, on_step=True)
        return loss

    def on_train_start(self):
        for scheduler in self.trainer.lr_scheduler_configs:
            scheduler.scheduler.base_lrs = [1e-2 * flags.lr_scale]
        for group in self.optimizers().param_groups:
            group["lr"] *= flags.lr_scale

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def once(name):
    if Path(name).exists():
        return False
    Path(name).touch()
    return True


class Faults(lightning.Callback):
    def on_train_batch_end(self, trainer, module, *more):
        if trainer.global_step == 260 and once("poisoned"):
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(float("nan"))


x = torch.randn(4000, 8)
y = x.sum(1, keepdim=True).sin()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
module = Module()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=lightning.pytorch.loggers.CSVLogger("out", flush_logs_every_n_steps=10),
    log_every_n_steps=5,
    default_root_dir="out",
    callbacks=[
        Faults(),
        lightning.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=25, save_top_k=-1),
    ],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, loader, ckpt_path=flags.ckpt)
finite = all(bool(torch.isfinite(p).all()) for p in module.parameters())
print(json.dumps({"finite": finite, "overnight": "overnight" in sys.modules}))
