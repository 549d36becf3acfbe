"""A job that profiles itself: its events must not vanish when we profile it too."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    loss = model(torch.ones(2, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


for _ in range(2):
    step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    step()
print("events", len(profiler.events()) > 0)
for _ in range(4):
    loss = step()
print(loss.item().hex())
