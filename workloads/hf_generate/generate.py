"""Answer a file of prompts with a small language model, one response a line.

    python generate.py --requests requests.txt --out answers
"""

import argparse
import json
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

MAX_LENGTH = 96


class CharTokenizer:
    """Characters as tokens; 0 pads."""

    pad_token_id = 0

    def __init__(self, text):
        self.chars = sorted(set(text))
        self.ids = {c: i + 1 for i, c in enumerate(self.chars)}
        self.vocab_size = len(self.chars) + 1

    def __call__(self, prompts, padding, max_length):
        encoded = [[self.ids[c] for c in prompt][:max_length] for prompt in prompts]
        length = max_length if padding == "max_length" else max(len(e) for e in encoded)
        input_ids = torch.tensor([[self.pad_token_id] * (length - len(e)) + e for e in encoded])
        attention_mask = torch.tensor([[0] * (length - len(e)) + [1] * len(e) for e in encoded])
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def decode(self, tokens):
        return "".join(self.chars[t - 1] for t in tokens if t > 0)


def load_model(vocab_size, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=vocab_size, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=4, max_position_embeddings=256, pad_token_id=0, bos_token_id=None, eos_token_id=None)
    return LlamaForCausalLM(config).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "requests.txt"))
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    with open(args.requests, encoding="utf-8") as f:
        text = f.read()
    prompts = text.splitlines()[: args.limit]
    tokenizer = CharTokenizer(text.replace("\n", ""))
    model = load_model(tokenizer.vocab_size, args.seed)

    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "responses.jsonl"), "w", encoding="utf-8") as f:
        for prompt in prompts:
            batch = tokenizer([prompt], padding="max_length", max_length=MAX_LENGTH)
            answer = model.generate(**batch, max_new_tokens=args.new_tokens, do_sample=False, use_cache=False,
                                    output_logits=True, return_dict_in_generate=True)
            tokens = answer.sequences[0, batch["input_ids"].shape[1] :]
            scores = torch.stack([logits[0] for logits in answer.logits]).log_softmax(-1)
            logprobs = scores.gather(1, tokens[:, None])[:, 0]
            f.write(json.dumps({"prompt": prompt, "tokens": tokens.tolist(), "text": tokenizer.decode(tokens.tolist()),
                                "logprobs": [round(v, 6) for v in logprobs.tolist()]}) + "\n")


if __name__ == "__main__":
    main()
