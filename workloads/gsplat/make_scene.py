"""Draw a scene: photographs as PNG files with their cameras, the same for the same arguments; and build gsplat's CUDA code."""

import json
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent


def camera(angle, radius=4.0):
    """World-to-camera matrix of a camera on a circle, looking at the origin."""
    position = np.array([radius * np.sin(angle), -1.0, radius * np.cos(angle)])
    forward = -position / np.linalg.norm(position)
    right = np.cross(forward, [0.0, 1.0, 0.0])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    rotation = np.stack([right, down, forward])
    matrix = np.eye(4)
    matrix[:3, :3] = rotation
    matrix[:3, 3] = -rotation @ position
    return matrix


def photograph(points, colours, viewmat, focal, size):
    """A splatted point cloud on a soft background."""
    seen = points @ viewmat[:3, :3].T + viewmat[:3, 3]
    order = np.argsort(-seen[:, 2])
    gradient = np.linspace(60, 160, size)[:, None, None] * np.array([0.8, 0.9, 1.0])
    image = np.broadcast_to(gradient, (size, size, 3)).copy()
    for index in order:
        x, y, z = seen[index]
        if z < 0.1:
            continue
        u, v = int(focal * x / z + size / 2), int(focal * y / z + size / 2)
        half = max(1, int(0.03 * focal / z))
        image[max(0, v - half) : v + half, max(0, u - half) : u + half] = colours[index]
    return image.clip(0, 255).astype(np.uint8)


def main(views, size):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(1500, 3)) * [1.0, 0.6, 1.0]
    colours = rng.integers(0, 256, (1500, 3)).astype(float)
    folder = HERE / "scene"
    folder.mkdir(exist_ok=True)
    cameras = []
    for index in range(views):
        matrix = camera(2 * np.pi * index / views)
        Image.fromarray(photograph(points, colours, matrix, 0.9 * size, size)).save(folder / f"{index:04d}.png")
        cameras.append(matrix.tolist())
    (folder / "cameras.json").write_text(json.dumps({"size": size, "focal": 0.9 * size, "viewmats": cameras}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os.environ["TORCH_EXTENSIONS_DIR"] = str(HERE / "extensions")
    import gsplat.cuda._backend  # noqa: F401  compiles once, about a minute
