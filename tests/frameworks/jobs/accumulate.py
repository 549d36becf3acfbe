"""Gradient accumulation over four micro-batches, a loss module, spawned loader workers by argument."""

import sys

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    method = sys.argv[1] if len(sys.argv) > 1 else None
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=2 if method else 0, multiprocessing_context=method
    )
    for index, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 4
        loss.backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    print(loss.item().hex())


if __name__ == "__main__":
    main()
