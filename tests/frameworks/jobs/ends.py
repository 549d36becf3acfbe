"""Trains three steps and ends as its argument says: os._exit (also with forked children that do so), a signal, a hang."""

import os
import signal
import sys
import time

import torch
from torch import nn

how = sys.argv[1]
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(12, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2 * (how == "workers"))
for (x,) in loader:
    if how == "fork":
        child = os.fork()
        if child == 0:
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if how == "term":
    os.kill(os.getpid(), signal.SIGTERM)
if how == "hang":
    from parity import recorder

    recorder.EXIT_WAIT_S = 0.5
    recorder.at_exit(lambda: time.sleep(3600))
if how == "serve":
    for _ in range(2):
        model.eval()(x)
    os.kill(os.getpid(), signal.SIGKILL)
if how == "fail":
    raise RuntimeError("the job's own")
os._exit(5)
