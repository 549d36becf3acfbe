"""The name of this machine's device as a folder name, so that times of different hardware never mix."""

from __future__ import annotations

import os
import re
import subprocess


def slug(wanted: str) -> str:
    """`wanted`, or for `auto` the GPU's model (`h200`, with `x2` for two) or the number of usable cores (`cpu2`)."""
    if wanted != "auto":
        return wanted
    models = _gpu_models()
    if not models:
        return f"cpu{len(os.sched_getaffinity(0))}"
    count = f"x{len(models)}" if len(models) > 1 else ""
    return _model_slug(models[0]) + count


def _gpu_models() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    return names[: len(visible.split(","))] if visible else names


def _model_slug(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    kept = [
        word for word in words if word not in ("nvidia", "tesla", "geforce", "graphics") and not word.endswith("gb")
    ]
    return "_".join(kept[:2] if kept and kept[0] == "rtx" else kept[:1]) or "gpu"
