"""Characters of a text file, as random windows for training and validation."""

import torch


class CharDataset:
    def __init__(self, path, block_size):
        with open(path, encoding="utf-8") as f:
            self.text = f.read()
        self.chars = sorted(set(self.text))
        self.stoi = {ch: i for i, ch in enumerate(self.chars)}
        self.block_size = block_size
        self.split = int(0.9 * len(self.text))

    @property
    def vocab_size(self):
        return len(self.chars)

    def encode(self, s):
        return [self.stoi[c] for c in s]

    def get_batch(self, split, batch_size, generator):
        text = self.text[: self.split] if split == "train" else self.text[self.split :]
        data = torch.tensor(self.encode(text), dtype=torch.long)
        ix = torch.randint(len(data) - self.block_size - 1, (batch_size,), generator=generator)
        x = torch.stack([data[i : i + self.block_size] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + self.block_size] for i in ix])
        return x, y
