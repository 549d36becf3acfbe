"""Two ranks of DistributedDataParallel over gloo: of torchrun, or of multiprocessing with `spawn` as argument."""

import os
import sys

import torch
from torch import nn


def main(rank: int = -1) -> None:
    if rank >= 0:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
        torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    else:
        torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        loss = model(torch.randn(4, 8, generator=generator)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(rank, loss.item().hex())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "spawn":
        torch.multiprocessing.spawn(main, nprocs=2)
    else:
        main()
