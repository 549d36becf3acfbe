"""Write a small Llama with random weights, its tokenizer, and instructions with answers; the same for the same arguments.

    python make_data.py 256
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
COLOURS = "red green blue white black yellow grey brown".split()
THINGS = "house river train paper garden window stone bird road lamp".split()
VERBS = "describe count paint carry compare watch build repair".split()


def conversation(rng):
    def phrase():
        return f"the {rng.choice(COLOURS)} {rng.choice(THINGS)}"

    task = " and ".join(f"{rng.choice(VERBS)} {phrase()}" for _ in range(int(rng.integers(1, 6))))
    answer = ". ".join(f"{phrase()} is next to {phrase()}" for _ in range(int(rng.integers(2, 12))))
    return f"### Instruction:\n{task}\n### Response:\n{answer}."


def write_model(folder, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=1024, special_tokens=["<unk>", "<s>", "</s>", "<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
                                   pad_token="<pad>", padding_side="right", model_max_length=1024)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(fast), max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=3,
                         hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         dtype="bfloat16")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def main(count):
    rng = np.random.default_rng(0)
    texts = [conversation(rng) for _ in range(count)]
    folder = HERE / "data"
    write_model(folder / "model", texts)
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    # Unsloth's desktop application, two thirds of the wheel; training imports nothing of it
    shutil.rmtree(HERE / "studio", ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
