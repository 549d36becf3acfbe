"""Write what fine-tuning needs: recordings as wav files with transcripts, a tokenizer, and a language model's config.

    python make_data.py 64 4.0 tiny

The same files for the same arguments. Nothing is fetched: the model is built from its config, with random weights.
"""

import importlib.util
import json
import shutil
import sys
import wave
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config

HERE = Path(__file__).resolve().parent
RATE = 16000
WORDS = "the a one two three green red blue river house light train morning window paper north stone garden bird road".split()
VALIDATION = 8
# tiny: a few million parameters for a CPU. nano: the sizes of Fun-ASR-Nano (Qwen3-0.6B behind a 512 wide encoder).
SIZES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32},
    "nano": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128},
}


def recording(rng, count, longest):
    """Voiced-like sound: for each word a few harmonics under an envelope, and some noise."""
    seconds = min(longest, 0.3 * count + rng.uniform(0.2, 0.6))
    time = np.arange(int(seconds * RATE)) / RATE
    sound = np.zeros_like(time)
    for index in range(count):
        pitch = rng.uniform(90, 260)
        envelope = np.exp(-(((time - 0.2 - 0.3 * index) / 0.1) ** 2))
        sound += envelope * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 8))
    sound += rng.normal(scale=0.02, size=sound.shape)
    return (sound / np.abs(sound).max() * 20000).astype("<i2")


def write_recordings(folder, utterances, longest):
    rng = np.random.default_rng(0)
    (folder / "wav").mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(utterances + VALIDATION):
        count = int(rng.integers(3, max(4, int(longest / 0.3))))
        text = " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), count))
        sound = recording(rng, count, longest)
        name = f"data/wav/{index:05d}.wav"
        with wave.open(str(folder / "wav" / f"{index:05d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(sound.tobytes())
        rows.append({
            "key": f"{index:05d}",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": f"Speech transcription:<|startofspeech|>!{name}<|endofspeech|>"},
                {"role": "assistant", "content": text},
            ],
            "speech_length": len(sound) * 100 // RATE,
            "text_length": count,
        })
    for split, part in (("train", rows[:utterances]), ("val", rows[utterances:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return [row["messages"][2]["content"] for row in rows]


def write_tokenizer(folder, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    prompts = ["system\nYou are a helpful assistant.", "user\nSpeech transcription:", "assistant\n"]
    tokenizer.train_from_iterator(texts + prompts, trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.save_pretrained(folder)
    return len(fast)


def write_torchaudio(folder):
    """Where torchaudio's binaries do not fit the installed torch: its Python files alone, which are all that fbank takes."""
    try:
        import torchaudio  # noqa: F401
    except OSError:
        origin = Path(importlib.util.find_spec("torchaudio").submodule_search_locations[0])
        shutil.copytree(origin, folder / "torchaudio", ignore=shutil.ignore_patterns("*.so", "__pycache__"))


def main(utterances, longest, size):
    texts = write_recordings(HERE / "data", utterances, longest)
    vocabulary = write_tokenizer(HERE / "data" / "tokenizer", texts)
    Qwen3Config(vocab_size=vocabulary, max_position_embeddings=2048, tie_word_embeddings=True, **SIZES[size]).save_pretrained(
        HERE / "data" / "llm")
    write_torchaudio(HERE / "stubs")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
