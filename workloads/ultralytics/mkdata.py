"""Write a small detection set: coloured shapes on textured images, the same ones for the same arguments."""

import sys
from pathlib import Path

import cv2
import numpy as np

NAMES = ["circle", "square", "triangle"]


def texture(rng, size):
    coarse = rng.integers(40, 200, (size // 16 + 1, size // 16 + 1, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
    noise = rng.integers(-20, 21, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def shape(rng, image):
    size = image.shape[0]
    kind = int(rng.integers(len(NAMES)))
    half = int(rng.integers(size // 14, size // 5))
    x, y = (int(v) for v in rng.integers(half + 1, size - half - 1, 2))
    colour = tuple(int(v) for v in rng.integers(0, 256, 3))
    if kind == 0:
        cv2.circle(image, (x, y), half, colour, -1)
    elif kind == 1:
        cv2.rectangle(image, (x - half, y - half), (x + half, y + half), colour, -1)
    else:
        cv2.fillPoly(image, [np.array([(x, y - half), (x - half, y + half), (x + half, y + half)])], colour)
    return f"{kind} {x / size:.6f} {y / size:.6f} {2 * half / size:.6f} {2 * half / size:.6f}"


def main(folder, train, val, size):
    rng = np.random.default_rng(0)
    root = Path(folder)
    for split, count in (("train", train), ("val", val)):
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            image = texture(rng, size)
            lines = [shape(rng, image) for _ in range(int(rng.integers(1, 6)))]
            cv2.imwrite(str(root / "images" / split / f"{index:05d}.jpg"), image)
            (root / "labels" / split / f"{index:05d}.txt").write_text("\n".join(lines) + "\n")
    names = "".join(f"  {i}: {name}\n" for i, name in enumerate(NAMES))
    (root / "data.yaml").write_text(f"path: {root.name}\ntrain: images/train\nval: images/val\nnames:\n{names}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
