"""transformers' Trainer on a small random Llama: two accumulation steps, an evaluation at the end."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
)


def rows(count):
    return [
        {
            "input_ids": (ids := torch.randint(3, 64, (12,))),
            "attention_mask": torch.ones(12, dtype=torch.long),
            "labels": ids,
        }
        for _ in range(count)
    ]


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        seed=1,
    )
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows(24), eval_dataset=rows(4))
    trainer.train()
    print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    print(trainer.evaluate()["eval_loss"].hex())
