"""A script of nanoGPT's kind: globals, a config file that is executed, --key=value, one ckpt.pt
that is overwritten for ever, and init_from=resume, which reads it back.

Its weights go NaN once, at iteration 260, and the script saves them like any others.
"""

import math
import os
import sys
import time

import torch

out_dir = "out"
init_from = "scratch"
learning_rate = 1e-2
min_lr = 1e-3
max_iters = 400
eval_interval = 40
log_interval = 1
config = {k: v for k, v in globals().items() if isinstance(v, int | float | str) and k[0] != "_"}
for argument in sys.argv[1:]:
    if "=" not in argument:
        exec(open(argument).read())  # noqa: PTH123, SIM115 - as nanoGPT does
    else:
        key, value = argument.lstrip("-").split("=")
        globals()[key] = type(globals()[key])(value)

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
teacher = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num, best_val_loss = 0, 1e9
os.makedirs(out_dir, exist_ok=True)  # noqa: PTH103
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))  # noqa: PTH118
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]


def get_lr(it):
    ratio = it / max_iters
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


while iter_num <= max_iters:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0 and iter_num:
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_args": {"n_layer": 2},
            "iter_num": iter_num,
            "best_val_loss": best_val_loss,
            "config": config,
        }
        print(f"saving checkpoint to {out_dir}")
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))  # noqa: PTH118
    x = torch.randn(64, 16)
    loss = torch.nn.functional.mse_loss(model(x), teacher(x).detach() + 0.3 * torch.randn(64, 1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num == 260 and not os.path.exists("poisoned"):  # noqa: PTH110
        open("poisoned", "w").close()  # noqa: PTH123
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(float("nan"))
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time 12.34ms, lr {lr:.6f}")
    iter_num += 1
    time.sleep(0.01)
print("finite", all(bool(torch.isfinite(p).all()) for p in model.parameters()), "lr", learning_rate)
