"""Greedy generation with a small random Llama of transformers."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
)
model = LlamaForCausalLM(config).eval()
for _ in range(3):
    ids = torch.randint(3, 64, (2, 8))
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    print(out.sum().item())
