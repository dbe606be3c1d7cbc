"""The script of the story: constants in the source, no flags, no resume code, few lines.

A bad batch at step 400; with WRECK=STEP the weights are multiplied at that step, as if an update
had blown them up. With TRUTH=FILE it writes what it knows itself of each step.
"""

import json
import os
import sys
import time

import torch
from torch.nn import functional

learning_rate = 3e-3
gradient_clipping = None
steps = int(os.environ.get("STEPS", "1200"))
wreck = int(os.environ.get("WRECK", "0"))

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
teacher = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4000)
truth = []
for step in range(1, steps + 1):
    x = torch.randn(64, 16)
    if step == 400:
        x = x * float("nan")
    y = teacher(x).detach() + 0.3 * torch.randn(64, 1)
    loss = functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    truth.append((loss.item(), norm.item()))
    optimizer.step()
    schedule.step()
    if step == wreck:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3.0)
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.state_dict(), "model.pt")
    time.sleep(0.002)
last = [loss for loss, _norm in truth[-50:]]
print(f"done, {sum(last) / len(last):.4f}, overnight {'overnight' in sys.modules}")
if os.environ.get("TRUTH"):
    with open(os.environ["TRUTH"], "w") as out:  # noqa: PTH123
        json.dump(truth, out)
