"""Train YOLO11n from scratch with the published ultralytics package, offline."""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
try:
    import torchvision  # noqa: F401
except Exception:  # none is installed, or one that does not fit this torch
    sys.path.insert(0, str(HERE / "stubs"))

import torch
from ultralytics import YOLO, settings


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--imgsz", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="yolo11n.yaml")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    settings.update({"sync": False})
    out = Path(args.out).resolve()
    data = out / "data.yaml"
    data.parent.mkdir(parents=True, exist_ok=True)
    text = (HERE / "data" / "data.yaml").read_text()
    data.write_text(text.replace("path: data", f"path: {HERE / 'data'}"))

    model = YOLO(args.model)
    model.train(data=str(data), imgsz=args.imgsz, epochs=args.epochs, batch=args.batch, nbs=args.batch, workers=args.workers,
                device=args.device, seed=args.seed, deterministic=True, amp=False, pretrained=False, plots=False, val=True,
                optimizer="AdamW", lr0=0.001, project=str(out), name="run", exist_ok=True, verbose=False)

    # ultralytics' own checkpoints carry dates; these do not
    torch.save({k: v.float().cpu() for k, v in model.trainer.model.state_dict().items()}, out / "model.pt")
    metrics = {k: float(v) for k, v in model.trainer.metrics.items()}
    (out / "result.json").write_text(json.dumps({"loss": model.trainer.loss.item(), "metrics": metrics}))


if __name__ == "__main__":
    main()
