"""Fine-tune a Llama with LoRA through Unsloth and TRL's SFTTrainer.

    python train.py --steps 20 --out runs/0
"""

import argparse
import json
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Unsloth writes the modules that it compiles; never into the tree
    os.environ["UNSLOTH_COMPILE_LOCATION"] = str(out / "run" / "compiled")

    import unsloth  # noqa: F401  before transformers and trl, which it patches
    import torch
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(HERE / "data" / "model"), max_seq_length=args.length, dtype=torch.bfloat16, load_in_4bit=False, local_files_only=True)
    model = FastLanguageModel.get_peft_model(
        model, r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0, bias="none", random_state=args.seed,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        use_gradient_checkpointing="unsloth")
    data = load_dataset("json", data_files=str(HERE / "data" / "train.jsonl"), split="train",
                        cache_dir=str(out / "run" / "datasets"))
    trainer = SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=data,
        args=SFTConfig(output_dir=str(out / "run"), max_steps=args.steps, per_device_train_batch_size=args.batch,
                       gradient_accumulation_steps=1, learning_rate=2e-4, warmup_steps=2, logging_steps=1, optim="adamw_torch",
                       dataset_text_field="text", max_length=args.length, packing=False, dataset_num_proc=1, bf16=True,
                       save_strategy="no", report_to="none", seed=args.seed, data_seed=args.seed))
    trainer.train()

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    lora = {name: value.detach().float().cpu() for name, value in model.named_parameters() if value.requires_grad}
    torch.save(lora, out / "lora.pt")
    (out / "result.json").write_text(json.dumps({"loss": losses[-1], "first_loss": losses[0]}))


if __name__ == "__main__":
    main()
