"""Inference with a compiled model, thirty calls: as a wrapper, or in place with `inplace` as argument."""

import sys

import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.inner(x)))


model = Model().eval()
if "inplace" in sys.argv:
    model.compile(backend="aot_eager")
else:
    model = torch.compile(model, backend="aot_eager")
with torch.no_grad():
    total = sum(model(torch.randn(4, 8)).sum() for _ in range(30))
counters = torch._dynamo.utils.counters
print(total.item().hex())
print(counters["stats"]["unique_graphs"], dict(counters["graph_break"]))
