"""Two ranks of FSDP over gloo: `fully_shard` (parameters are DTensors), or the older wrapper with `wrapper`."""

import sys

import torch
from torch import nn

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
if "wrapper" in sys.argv:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)
for _ in range(4):
    loss = model(torch.randn(4, 8, generator=generator)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(rank, loss.item().hex())
torch.distributed.destroy_process_group()
