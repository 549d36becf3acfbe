"""A plain loop: labels through a functional loss, clipping, an evaluation without gradients."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(48, 16), torch.randint(0, 4, (48,)))
for _ in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(model(torch.ones(5, 16)).sum().item().hex())
    model.train()
print(loss.item().hex())
