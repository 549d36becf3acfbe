"""A compiled model whose forward also calls parity, if it is there."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

parity = sys.modules.get("parity")
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, ids, targets):
        hidden = torch.relu(self.inner(ids))
        if parity is not None:
            parity.record("hidden", hidden)
        return F.cross_entropy(self.head(hidden), targets)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
for _ in range(5):
    loss = compiled(torch.randn(4, 8), torch.randint(0, 4, (4,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item().hex())
print(sum(torch._dynamo.utils.counters["stats"].values() and [torch._dynamo.utils.counters["stats"]["unique_graphs"]]))
