"""Answer requests for images: denoise a latent, then decode it. The decoder is large, so it lives in host memory between uses.

    python serve.py --requests 12 --seed 0 --out runs/0
"""

import argparse
import json
import os

import torch
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    def forward(self, x, t):
        return self.layers(x) * (1.0 - t)


class Decoder(nn.Module):
    def __init__(self, channels, width, layers):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.layers = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(layers)])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z):
        x = self.first(z)
        for layer in self.layers:
            x = x + torch.nn.functional.silu(layer(x)) * 0.1
        return self.last(nn.functional.interpolate(x, scale_factor=4.0))


class Pipeline:
    def __init__(self, args, device):
        self.device = device
        self.channels, self.size, self.steps = args.channels, args.size, args.denoise_steps
        with torch.device(device):
            self.denoiser = Denoiser(args.channels, 128).eval()
            self.decoder = Decoder(args.channels, args.width, args.layers).eval()

    def denoise(self, generator):
        x = torch.randn(1, self.channels, self.size, self.size, generator=generator).to(self.device)
        for i in range(self.steps):
            x = x - self.denoiser(x, i / self.steps) / self.steps
        return x

    def decode(self, z):
        self.decoder.to(self.device)
        image = self.decoder(z)
        self.decoder.to("cpu")
        return image

    @torch.inference_mode()
    def __call__(self, generator):
        return self.decode(self.denoise(generator)).cpu()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--denoise-steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()

    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    pipeline = Pipeline(args, "cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(args.seed)
    means = []
    for request in range(args.requests):
        image = pipeline(generator)
        torch.save(image.half(), os.path.join(args.out, f"image{request}.pt"))
        means.append(round(image.mean().item(), 4))
    with open(os.path.join(args.out, "result.json"), "w") as f:
        json.dump({"requests": args.requests, "means": means}, f)


if __name__ == "__main__":
    main()
