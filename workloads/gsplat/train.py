"""Fit Gaussians to photographs with gsplat.

    python train.py --steps 300 --out runs/0
"""

import argparse
import json
import os
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ["TORCH_EXTENSIONS_DIR"] = str(HERE / "extensions")

import numpy as np
import torch
import torch.nn.functional as F
from gsplat import rasterization
from PIL import Image


class Scene(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = Path(folder)
        cameras = json.loads((self.folder / "cameras.json").read_text())
        self.size, self.focal = cameras["size"], cameras["focal"]
        self.viewmats = torch.tensor(cameras["viewmats"], dtype=torch.float32)

    def __len__(self):
        return len(self.viewmats)

    def __getitem__(self, index):
        image = np.asarray(Image.open(self.folder / f"{index:04d}.png"))
        return torch.from_numpy(image).float() / 255.0, self.viewmats[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--gaussians", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda")

    scene = Scene(HERE / "scene")
    n = args.gaussians
    params = {
        "means": torch.randn(n, 3) * 0.8,
        "quats": F.normalize(torch.randn(n, 4), dim=-1),
        "scales": torch.full((n, 3), -4.0),
        "opacities": torch.full((n,), -2.0),
        "colors": torch.rand(n, 3),
    }
    params = {k: v.to(device).requires_grad_() for k, v in params.items()}
    rates = {"means": 1e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2, "colors": 1e-2}
    optimizer = torch.optim.Adam([{"params": [params[k]], "lr": rates[k]} for k in params], eps=1e-15)
    focal, size = scene.focal, scene.size
    K = torch.tensor([[focal, 0, size / 2], [0, focal, size / 2], [0, 0, 1]], device=device)

    loader = torch.utils.data.DataLoader(scene, batch_size=1, shuffle=True, generator=torch.Generator().manual_seed(args.seed))
    batches = iter(loader)
    losses = []
    for step in range(args.steps):
        try:
            image, viewmat = next(batches)
        except StopIteration:
            batches = iter(loader)
            image, viewmat = next(batches)
        image, viewmat = image.to(device), viewmat.to(device)
        render, _, _ = rasterization(params["means"], F.normalize(params["quats"], dim=-1), torch.exp(params["scales"]),
                                     torch.sigmoid(params["opacities"]), torch.sigmoid(params["colors"]), viewmat, K[None], size, size)
        loss = F.l1_loss(render, image)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    torch.save({k: v.detach().cpu() for k, v in params.items()}, os.path.join(args.out, "model.pt"))
    with open(os.path.join(args.out, "result.json"), "w") as f:
        json.dump({"loss": losses[-1], "mean_loss": sum(losses) / len(losses)}, f)


if __name__ == "__main__":
    main()
