"""An optimizer that calls a closure several times a step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
x, y = torch.randn(32, 6), torch.randn(32, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
for _ in range(4):

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
print(loss.item().hex())
