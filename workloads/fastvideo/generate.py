"""Denoise video latents with FastVideo's Wan transformer and scheduler, random weights, with guidance.

    python generate.py --requests 2 --out runs/0

One part of video generation: no text encoder, no decoder, for these take weights from a hub.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FASTVIDEO_ATTENTION_BACKEND", "TORCH_SDPA")

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # its binaries do not fit this torch; its Python files do, once the operators that they name exist
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fastvideo.configs.models.dits.wanvideo import WanVideoArchConfig, WanVideoConfig
from fastvideo.distributed.parallel_state import maybe_init_distributed_environment_and_model_parallel
from fastvideo.forward_context import set_forward_context
from fastvideo.models.dits.wanvideo import WanTransformer3DModel
from fastvideo.models.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from fastvideo.pipelines.pipeline_batch_info import ForwardBatch
from fastvideo.platforms.cpu import CpuPlatform

SIZES = {
    "tiny": {"num_attention_heads": 4, "attention_head_dim": 32, "text_dim": 64, "freq_dim": 64, "ffn_dim": 512, "num_layers": 4},
    # Wan 2.1, 1.3 billion parameters
    "1.3b": {"num_attention_heads": 12, "attention_head_dim": 128, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 8960, "num_layers": 30},
}


def denoise(model, prompt, empty, shape, steps, guidance, device, dtype):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(steps, device=device)
    latents = torch.randn(shape, device=device)
    batch = ForwardBatch(data_type="video")
    for t in scheduler.timesteps:
        timestep = t.expand(1).to(device)
        with set_forward_context(current_timestep=int(t), attn_metadata=None, forward_batch=batch):
            noise = model(latents.to(dtype), prompt, timestep)
            plain = model(latents.to(dtype), empty, timestep)
        noise = plain + guidance * (noise - plain)
        latents = scheduler.step(noise.float(), t, latents, return_dict=False)[0]
    return latents


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--denoise", type=int, default=6)
    parser.add_argument("--frames", type=int, default=5)
    parser.add_argument("--px", type=int, default=24, help="height and width of the latents")
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    if device.type == "cpu":
        # FastVideo knows no attention backend for CPUs; its SDPA one runs there
        CpuPlatform.get_attn_backend_cls = classmethod(lambda cls, *args, **kwargs: "fastvideo.attention.backends.sdpa.SDPABackend")
    maybe_init_distributed_environment_and_model_parallel(1, 1, f"file://{out / 'rendezvous'}")
    config = WanVideoConfig(arch_config=WanVideoArchConfig(**SIZES[args.size]))
    model = WanTransformer3DModel(config, hf_config={}).to(device, dtype).eval()
    for parameter in model.parameters():  # FastVideo leaves them to a checkpoint
        torch.nn.init.normal_(parameter, std=0.02)

    prompts = sorted((HERE / "prompts").glob("*.pt"))
    norms = []
    with torch.no_grad():
        for index in range(args.requests):
            prompt = torch.load(prompts[index % len(prompts)]).to(device, dtype)
            shape = (1, 16, args.frames, args.px, args.px)
            latents = denoise(model, prompt, torch.zeros_like(prompt), shape, args.denoise, 5.0, device, dtype)
            torch.save(latents.cpu(), out / f"latents{index:03d}.pt")
            norms.append(latents.norm().item())
            print(f"request {index}: norm {norms[-1]:.3f}", flush=True)
    (out / "result.json").write_text(json.dumps({"norms": norms}))
    torch.distributed.destroy_process_group()
    (out / "rendezvous").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
