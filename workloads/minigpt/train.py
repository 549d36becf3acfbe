"""Train a small character-level GPT on a text file.

    python train.py --steps 6 --seed 0 --out runs/0
"""

import argparse
import csv
import json
import os

import torch

from data import CharDataset
from model import GPT, GPTConfig


def evaluate(model, dataset, batches, batch_size, seed):
    """Mean validation loss over a fixed set of batches."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    total = 0.0
    for _ in range(batches):
        x, y = dataset.get_batch("val", batch_size, generator)
        _, loss = model(x, y)
        total += loss.item()
    model.train()
    return total / batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.path.join(os.path.dirname(__file__), "input.txt"))
    parser.add_argument("--out", default="out")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--eval-every", type=int, default=6)
    parser.add_argument("--eval-batches", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    dataset = CharDataset(args.data, args.block_size)
    config = GPTConfig(block_size=args.block_size, vocab_size=dataset.vocab_size)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    log = open(os.path.join(args.out, "log.csv"), "w", newline="")
    writer = csv.writer(log)
    writer.writerow(["step", "loss", "grad_norm", "val_loss"])

    for step in range(args.steps):
        x, y = dataset.get_batch("train", args.batch_size, generator)
        _, loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()

        # keep an eye on the gradients
        total = 0.0
        for p in model.parameters():
            total += p.grad.norm().item() ** 2
        grad_norm = total**0.5
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        val_loss = ""
        if (step + 1) % args.eval_every == 0:
            val_loss = evaluate(model, dataset, args.eval_batches, args.batch_size, args.seed)
            print(f"step {step + 1}: loss {loss.item():.4f}, val loss {val_loss:.4f}", flush=True)
        writer.writerow([step + 1, loss.item(), grad_norm, val_loss])

    log.close()
    torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))
    with open(os.path.join(args.out, "result.json"), "w") as f:
        json.dump({"steps": args.steps, "loss": loss.item(), "val_loss": val_loss}, f)


if __name__ == "__main__":
    main()
