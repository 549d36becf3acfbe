"""Train a causal transformer on sequences of very different lengths, one length a batch.

    python train.py --steps 40 --seed 0 --out runs/0
"""

import argparse
import json
import os
import random

import torch
import torch.nn as nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary, width, heads, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Batches:
    """Batches of sequences of one length each, as a loader that sorts by length gives them."""

    def __init__(self, steps, batch_size, shortest, longest, vocabulary, seed):
        rng = random.Random(seed)
        self.lengths = [rng.randint(shortest, longest) for _ in range(steps)]
        self.batch_size, self.vocabulary, self.seed = batch_size, vocabulary, seed

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        for length in self.lengths:
            yield torch.randint(self.vocabulary, (self.batch_size, length + 1), generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--shortest", type=int, default=300)
    parser.add_argument("--longest", type=int, default=3000)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=4096)
    args = parser.parse_args()

    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    model = Model(args.vocabulary, args.width, args.heads, args.layers).to(device=device, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    losses = []
    for tokens in Batches(args.steps, args.batch_size, args.shortest, args.longest, args.vocabulary, args.seed):
        tokens = tokens.to(device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    with open(os.path.join(args.out, "result.json"), "w") as f:
        json.dump({"steps": args.steps, "losses": [round(x, 4) for x in torch.stack(losses).tolist()]}, f)


if __name__ == "__main__":
    main()
