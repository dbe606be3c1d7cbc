"""A script of the kind of Hugging Face's examples: all by flags; its weights go NaN once."""

import json
import sys
from pathlib import Path

import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

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
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
trainer = Trainer(model=Model(), args=arguments, train_dataset=data)


def once(name):
    if Path(name).exists():
        return False
    Path(name).touch()
    return True


class Faults(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **more):
        if state.global_step == 260 and once("poisoned"):
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(float("nan"))


trainer.add_callback(Faults())
print(json.dumps(sys.argv))
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
finite = all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
print(json.dumps({"finite": finite, "overnight": "overnight" in sys.modules}))
