"""Fine-tune Fun-ASR-Nano from random weights with FunASR's own trainer.

    python train.py --epochs 2 --out runs/0
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if (HERE / "stubs").is_dir():  # torchaudio without binaries, see make_data.py
    sys.path.insert(0, str(HERE / "stubs"))

import torch
from funasr.bin import train_ds


def config(args, out):
    wide = args.size == "nano"
    return {
        "model": "FunASRNano",
        "model_conf": {"lsm_weight": 0.0, "length_normalized_loss": True},
        "audio_encoder": "SenseVoiceEncoderSmall",
        "audio_encoder_conf": {
            "output_size": 512 if wide else 128, "attention_heads": 4, "linear_units": 2048 if wide else 256,
            "num_blocks": 50 if wide else 4, "tp_blocks": 20 if wide else 2, "dropout_rate": 0.0,
            "positional_dropout_rate": 0.0, "attention_dropout_rate": 0.0, "input_layer": "pe", "kernel_size": 11,
            "sanm_shfit": 0, "selfattention_layer_type": "sanm", "freeze": True,
        },
        "audio_adaptor": "Transformer",
        "audio_adaptor_conf": {"downsample_rate": 1, "use_low_frame_rate": True, "ffn_dim": 2048 if wide else 256,
                               "n_layer": 2, "freeze": False},
        "llm": "Qwen3-0.6b",
        "llm_conf": {"hub": "hf", "freeze": False, "llm_dtype": args.dtype, "init_param_path": "data/llm"},
        "frontend": "WavFrontend",
        "frontend_conf": {"fs": 16000, "window": "hamming", "n_mels": 80, "frame_length": 25, "frame_shift": 10, "lfr_m": 7,
                          "lfr_n": 6, "dither": 0.0, "cmvn_file": None},
        "tokenizer": "HuggingfaceTokenizer",
        "tokenizer_conf": {"init_param_path": "data/tokenizer"},
        "dataset": "FunASR",
        "dataset_conf": {
            "index_ds": "FunASR", "batch_sampler": "BatchSampler", "batch_type": "example", "batch_size": args.batch,
            "num_workers": args.workers, "pin_memory": args.device != "cpu", "shuffle": True, "retry": 1,
        },
        "train_data_set_list": "data/train.jsonl",
        "valid_data_set_list": "data/val.jsonl",
        "train_conf": {"max_epoch": args.epochs, "log_interval": 1, "accum_grad": 1, "grad_clip": 5.0, "resume": False,
                       "use_bf16": args.dtype == "bf16", "keep_nbest_models": 1, "avg_nbest_model": 1},
        "optim": "adamw",
        "optim_conf": {"lr": 2e-4},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": 8},
        "seed": args.seed,
        "device": args.device,
        "ncpu": args.threads,
        "output_dir": str(out),
        "disable_update": True,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", default="tiny", choices=["tiny", "nano"])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    out = Path(args.out).resolve()
    os.chdir(HERE)

    if args.device == "cpu":
        # train_ds sets the device to the local rank's number, which names a GPU
        train_ds.Trainer.device = property(lambda self: "cpu", lambda self, value: None)
    train_ds.main(**config(args, out / "run"))

    # FunASR's checkpoint holds the optimizer's state and file names too; this is the trained model
    checkpoint = torch.load(out / "run" / "model.pt", map_location="cpu")
    torch.save(checkpoint["state_dict"], out / "model.pt")
    result = {"val_loss": checkpoint["val_loss_step_or_epoch"], "val_acc": checkpoint["val_acc_step_or_epoch"]}
    (out / "result.json").write_text(json.dumps(result))
    shutil.rmtree(out / "run")


if __name__ == "__main__":
    main()
