"""Three eager steps, then three replays of a captured one. The graph is a stand-in with the interface of
`torch.cuda.CUDAGraph`: its replay computes again, unseen by the hooks, into the tensors of the capture.
"""

import sys
import types

import torch
from torch import nn

how = sys.argv[1]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.zeros(4, 6), torch.zeros(4, dtype=torch.long)
loss = torch.zeros(())


def step() -> torch.Tensor:
    optimizer.zero_grad()
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    if how == "clip":
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    return value


class Graph:
    def capture_begin(self) -> None:
        self.weights = [p.detach().clone() for p in model.parameters()]

    def capture_end(self) -> None:
        with torch.no_grad():  # nothing runs during a capture
            for parameter, kept in zip(model.parameters(), self.weights):
                parameter.copy_(kept)

    def replay(self) -> None:
        if watcher is not None:
            watcher.capture = Captured()
        value = step()
        if watcher is not None:
            watcher.capture = None
        with torch.no_grad():
            loss.copy_(value)


watcher = None
if "parity" in sys.modules:
    from parity import recorder
    from parity.hooks.graphs import Captured

    watcher = recorder._exit_calls[0].__self__.graphs
    watcher.install(types.SimpleNamespace(CUDAGraph=Graph))

graph = Graph()
for index in range(6):
    generator = torch.Generator().manual_seed(index)
    x.copy_(torch.randn(4, 6, generator=generator))
    y.copy_(torch.randint(0, 3, (4,), generator=generator))
    if how == "eager" or index < 3:
        loss = step()
        continue
    if index == 3:
        graph.capture_begin()
        loss = step()
        graph.capture_end()
    graph.replay()
print(loss.item().hex())
