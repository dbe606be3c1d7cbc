"""The Hugging Face Trainer, told to resume by two flags; its weights go NaN once.

The rate is lowered after the scheduler's state has been loaded, which brings its own along.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--lr_scale", type=float, default=1.0)
flags = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

    def forward(self, x, labels=None):
        out = self.net(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


x = torch.randn(4000, 8)
y = x.sum(1, keepdim=True).sin()

data = [{"x": a, "labels": b} for a, b in zip(x, y)]  # noqa: B905 - Python 3.9
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=1e-2,
    logging_steps=10,
    save_strategy="steps",
    save_steps=25,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=Model(), args=arguments, train_dataset=data)


def once(name):
    if Path(name).exists():
        return False
    Path(name).touch()
    return True


class Rate(TrainerCallback):
    def on_train_begin(self, args, state, control, lr_scheduler=None, optimizer=None, **more):
        lr_scheduler.base_lrs = [1e-2 * flags.lr_scale for _ in lr_scheduler.base_lrs]
        for group in optimizer.param_groups:
            group["lr"] *= flags.lr_scale


class Faults(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **more):
        if state.global_step == 260 and once("poisoned"):
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(float("nan"))


trainer.add_callback(Rate())
trainer.add_callback(Faults())
trainer.train(resume_from_checkpoint=flags.resume_from_checkpoint)
finite = all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
print(json.dumps({"finite": finite, "overnight": "overnight" in sys.modules}))
