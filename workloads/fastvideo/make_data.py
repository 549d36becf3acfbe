"""Write embedded prompts as a text encoder would give them: random, of different lengths, the same for the same arguments.

    python make_data.py 8 64
"""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def main(prompts, width):
    generator = torch.Generator().manual_seed(0)
    folder = HERE / "prompts"
    folder.mkdir(exist_ok=True)
    for index in range(prompts):
        length = int(torch.randint(8, 64, (), generator=generator))
        torch.save(torch.randn(1, length, width, generator=generator), folder / f"{index:03d}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
