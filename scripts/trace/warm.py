"""Compile what is compiled once a checkout, on a small trace recorded on the spot, so that no first run pays for it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from scripts.common.errors import run
from scripts.trace import critical, parse, summarise


def record(path: Path, steps: int) -> None:
    """Profile a small CPU loop with stacks, shapes and memory, as a profiled run does."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True, profile_memory=True
    ) as profiler:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def main(argv: list[str] | None = None) -> int:
    """Part of `make setup`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="wholejob-warm-") as folder:
        trace = Path(folder) / "rank0.json"
        steps = 20
        record(trace, steps)
        while trace.stat().st_size < 2 * parse.PLAIN_BELOW:  # below that the plain scanner is used
            steps *= 2
            record(trace, steps)
        parse.main([str(trace), "-o", folder])
        summarise.main([f"{folder}/events", "-o", f"{folder}/views"])
    critical.warm()
    return 0


if __name__ == "__main__":
    run(main)
