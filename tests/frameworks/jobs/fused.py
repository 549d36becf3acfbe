"""The fused optimizer, and a token model with an activation checkpoint that re-enters forward inside backward."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.block = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 50)

    def forward(self, ids, targets):
        hidden = self.embed(ids)
        hidden = hidden + (
            checkpoint(self.block, hidden, use_reentrant="--early-stop" not in sys.argv)
            if "--checkpoint" in sys.argv
            else self.block(hidden)
        )
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten(), ignore_index=-100)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused="--fused" in sys.argv)
width = int(sys.argv[1]) if len(sys.argv) > 1 else 12
for step in range(4):
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(4, 9, (6,), generator=generator)
    ids, targets = torch.zeros(6, width, dtype=torch.long), torch.full((6, width), -100)
    for row, length in enumerate(lengths.tolist()):
        ids[row, :length] = torch.randint(1, 50, (length,), generator=generator)
        targets[row, :length] = torch.randint(1, 50, (length,), generator=generator)
    if "--longest" in sys.argv:
        longest = int(lengths.max())
        ids, targets = ids[:, :longest], targets[:, :longest]
    loss = model(ids, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(loss.item().hex())
