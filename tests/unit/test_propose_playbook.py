"""The playbook on code as people write it: each fix before and after, a second time, with its comments, and refused
where it must be.
"""

# ruff: noqa: E501 - lines of source that a fix gives are quoted whole

import textwrap
from pathlib import Path
from typing import Any

import pytest

from scripts.propose.codemod import Refusal
from scripts.propose.playbook import fixes

WRITER = {"source": {"editable": ["**"], "protected": []}}
GPU = {**WRITER, "resources": {"gpus": 1, "cpus": 8}}


def apply(
    tmp_path: Path,
    name: str,
    files: dict[str, str] | str,
    spec: dict[str, Any] = WRITER,
    anchors: list[str] | None = None,
) -> dict[str, str]:
    """The files after the fix; applies it a second time and insists that there is nothing left to do."""
    given = {"train.py": files} if isinstance(files, str) else files
    given = {path: textwrap.dedent(text) for path, text in given.items()}
    for path, text in given.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    finding = {"id": "x", "anchors": [{"path": p, "line": 1, "code": ""} for p in anchors or []]}
    edits = fixes()[name].fix(tmp_path, finding, spec)
    assert edits and all(edits[path] != given[path] for path in edits)
    for path, text in edits.items():
        compile(text, path, "exec")
        (tmp_path / path).write_text(text)
    with pytest.raises(Refusal):
        fixes()[name].fix(tmp_path, finding, spec)
    return {**given, **edits}


def refuse(tmp_path: Path, name: str, files: dict[str, str] | str, why: str, spec: dict[str, Any] = WRITER) -> None:
    given = {"train.py": files} if isinstance(files, str) else files
    for path, text in given.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(text))
    with pytest.raises(Refusal, match=why):
        fixes()[name].fix(tmp_path, {"anchors": []}, spec)


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went and lines that came, stripped, in order."""
    import difflib

    lines = list(difflib.ndiff(textwrap.dedent(before).splitlines(), after.splitlines()))
    return [x[2:].strip() for x in lines if x[:2] == "- "], [x[2:].strip() for x in lines if x[:2] == "+ "]


def test_every_fix_declares_what_a_proposal_says() -> None:
    for name, module in fixes().items():
        assert module.FINDINGS and module.TITLE and module.HYPOTHESIS and module.RISK, name
        assert set(module.CLASSES) <= {"config", "backend", "python", "kernel"}, name
        assert isinstance(module.UNTESTED, list) and module.__doc__, name


# Attention

NANOGPT = """
    import math
    import torch
    import torch.nn as nn
    from torch.nn import functional as F

    class CausalSelfAttention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.attn_dropout = nn.Dropout(config.dropout)
            self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))
                                 .view(1, 1, config.block_size, config.block_size))

        def forward(self, x):
            B, T, C = x.size()  # batch, time, channels
            q, k, v = self.split_heads(x)

            # causal self-attention
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            # hide the future
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            att = F.softmax(att, dim=-1)
            att = self.attn_dropout(att)
            y = att @ v  # (B, nh, T, hs)
            return y.transpose(1, 2).contiguous().view(B, T, C)
"""


def test_sdpa_replaces_nanogpt_attention_and_keeps_its_comments(tmp_path: Path) -> None:
    text = apply(tmp_path, "sdpa", NANOGPT)["train.py"]
    call = "y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.attn_dropout.p if self.training else 0.0)"
    assert f"{call}  # (B, nh, T, hs)" in text
    for comment in ("# batch, time, channels", "# causal self-attention", "# hide the future"):
        assert comment in text
    assert "softmax" not in text and "register_buffer" in text  # the state dictionary keeps its keys


@pytest.mark.parametrize(
    ("body", "call"),
    [
        (  # Karpathy's lecture: one head, three dimensions, scale in the product
            """
            wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
            wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
            wei = F.softmax(wei, dim=-1)
            wei = self.dropout(wei)
            return wei @ v
            """,
            "return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout.p if self.training else 0.0)",
        ),
        (  # tutorials: matmul, a mask argument, a large negative number instead of -inf is refused elsewhere
            """
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
            if mask is not None:
                scores = scores.masked_fill(mask == 0, float("-inf"))
            weights = torch.softmax(scores, dim=-1)
            out = torch.matmul(weights, v)
            return out
            """,
            "out = F.scaled_dot_product_attention(q, k, v, attn_mask=(mask != 0) if mask is not None else None, scale=1.0 / math.sqrt(self.d_k))",
        ),
        (  # Hugging Face's eager form with an additive mask, without the weights
            """
            attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.scaling
            if attention_mask is not None:
                attn_weights = attn_weights + attention_mask
            attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(q.dtype)
            attn_weights = nn.functional.dropout(attn_weights, p=self.p, training=self.training)
            attn_output = torch.matmul(attn_weights, v)
            return attn_output
            """,
            "attn_output = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, "
            "dropout_p=self.p if self.training else 0.0, scale=self.scaling)",
        ),
        (  # einsum, heads after lengths
            """
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.scale
            weights = scores.softmax(dim=-1)
            return torch.einsum("bhqk,bkhd->bqhd", weights, v)
            """,
            "return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=self.scale).transpose(1, 2)",
        ),
        (  # the mask is made on the spot, upper triangle
            """
            att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            future = torch.triu(torch.ones(T, T, device=q.device), diagonal=1).bool()
            att.masked_fill_(future, float("-inf"))
            y = att.softmax(-1) @ v
            return y
            """,
            "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ),
        (  # additive causal mask, everything in one expression
            """
            mask = torch.triu(torch.full((T, T), float("-inf"), device=q.device), diagonal=1)
            return F.softmax(q @ k.mT / math.sqrt(q.size(-1)) + mask, dim=-1) @ v
            """,
            "return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ),
    ],
    ids=["lecture", "tutorial", "hf_eager", "einsum", "triu", "additive"],
)
def test_sdpa_knows_the_usual_forms(tmp_path: Path, body: str, call: str) -> None:
    head = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, q, k, v, T=None, mask=None, attention_mask=None):
"""
    text = apply(tmp_path, "sdpa", head + textwrap.indent(textwrap.dedent(body).strip() + "\n", " " * 8))["train.py"]
    assert call in text
    assert "softmax(" not in text and "triu" not in text


def test_sdpa_computes_what_the_attention_computed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    spaces: list[dict[str, Any]] = [{}, {}]
    before = textwrap.dedent(NANOGPT)
    exec(before, spaces[0])
    exec(apply(tmp_path, "sdpa", NANOGPT)["train.py"], spaces[1])
    x = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(0))
    results = []
    for space in spaces:
        from types import SimpleNamespace

        module = space["CausalSelfAttention"](SimpleNamespace(dropout=0.0, block_size=16))
        module.split_heads = lambda x: tuple(t.view(2, 8, 3, 4).transpose(1, 2) for t in (x, x * 0.5, x + 1))
        results.append(module(x))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return y.transpose", "self.weights = att\n            return y.transpose", "'att' is used again on line"),
        ("dim=-1", "dim=1", "not over the last dimension"),
        ("== 0, float('-inf')", "== 1, -1e9", "not provably causal is filled with -1e9"),
        ("1.0 / math.sqrt(k.size(-1))", "torch.sqrt(torch.tensor(4.0))", "the scale is a tensor"),
    ],
    ids=["weights_kept", "other_dimension", "finite_fill", "tensor_scale"],
)
def test_sdpa_refuses(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert old in NANOGPT
    refuse(tmp_path, "sdpa", NANOGPT.replace(old, new), why)


def test_sdpa_passes_a_mask_that_is_not_provably_causal(tmp_path: Path) -> None:
    for old, new in (
        ("[:, :, :T, :T]", "[:, :, 1:T, :T]"),
        ("torch.tril(torch.ones(config.block_size, config.block_size))", "config.window_mask"),
    ):
        text = apply(tmp_path, "sdpa", NANOGPT.replace(old, new))["train.py"]
        assert "is_causal" not in text and "attn_mask=self.bias[" in text and "!= 0" in text


# Optimizer


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "opt = torch.optim.AdamW(model.parameters(), lr=3e-4)",
            "opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)",
        ),
        (
            "opt = optim.SGD(groups, lr=0.1, momentum=0.9, foreach=True)",
            "opt = optim.SGD(groups, lr=0.1, momentum=0.9, fused=True)",
        ),
        ("opt = Adam(params, fused=False)", "opt = Adam(params, fused=True)"),
        (
            "opt = torch.optim.AdamW(\n    model.parameters(),  # all of them\n    lr=3e-4,\n)",
            "opt = torch.optim.AdamW(\n    model.parameters(),  # all of them\n    lr=3e-4,\n    fused=True,\n)",
        ),
        ("opt = torch.optim.AdamW(model.parameters(), **options)", None),
        ("opt = torch.optim.AdamW(p, capturable=True)", None),
        ("opt = torch.optim.RMSprop(p)", None),
        ("opt = torch.optim.AdamW(p, fused=device == 'cuda')", None),
        ("emb = torch.nn.Embedding(9, 9, sparse=True)\nopt = torch.optim.Adam(p)", None),
    ],
)
def test_fused_optimizer(tmp_path: Path, before: str, after: str | None) -> None:
    head = "import torch\nfrom torch import optim\nfrom torch.optim import Adam\n\n"
    if after is None:
        refuse(tmp_path, "fused_optimizer", head + before + "\n", "")
    else:
        assert apply(tmp_path, "fused_optimizer", head + before + "\n")["train.py"] == head + after + "\n"


def test_fused_optimizer_in_a_lightning_module(tmp_path: Path) -> None:
    text = """
        import lightning as L
        import torch

        class Lit(L.LightningModule):
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)  # as in the paper
    """
    after = apply(tmp_path, "fused_optimizer", text)["train.py"]
    assert "lr=self.hparams.lr, fused=True)  # as in the paper" in after


def test_fused_optimizer_in_a_trainer_of_a_package(tmp_path: Path) -> None:
    """ultralytics limits fused to CUDA, and older versions keep the arguments in a dictionary; only anchored files are
    looked at.
    """
    body = """
        from torch import nn, optim

        def build_optimizer(model, name, lr, momentum, g):
            if name in {"Adam", "Adamax", "AdamW"}:
                args = dict(lr=lr, betas=(momentum, 0.999), weight_decay=0.0)
            elif name == "SGD":
                args = dict(lr=lr, momentum=momentum, nesterov=True)
            return getattr(optim, name)(g, **args)
    """
    package = {f"pkg/m{i}.py": "import torch\nopt = torch.optim.Adam(p)\n" for i in range(50)}
    after = apply(
        tmp_path, "fused_optimizer", {**package, "pkg/engine/trainer.py": body}, anchors=["pkg/engine/trainer.py"]
    )
    text = after["pkg/engine/trainer.py"]
    assert 'weight_decay=0.0, fused=True if name in {"Adam", "AdamW"} else None)' in text
    assert "nesterov=True, fused=True)" in text
    assert after["pkg/m0.py"] == package["pkg/m0.py"]
    newer = """
        def build(name, model, g):
            fused = {"fused": True} if name in {"Adam", "AdamW"} and TORCH_2_0 and next(model.parameters()).is_cuda else {}
            return getattr(optim, name)(params=g, **fused)
    """
    text = apply(tmp_path / "new", "fused_optimizer", newer)["train.py"]
    assert 'fused = {"fused": True} if name in {"Adam", "AdamW"} and TORCH_2_0 else {}' in text


# Gradients


def test_set_to_none(tmp_path: Path) -> None:
    before = """
        def step(model, opt):
            opt.zero_grad(set_to_none=False)  # start clean
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.zero_()
    """
    text = apply(tmp_path, "set_to_none", before)["train.py"]
    assert changed(before, text) == (
        ["opt.zero_grad(set_to_none=False)  # start clean", "p.grad.zero_()"],
        ["opt.zero_grad()  # start clean", "p.grad = None"],
    )
    refuse(
        tmp_path / "b",
        "set_to_none",
        "def f(opt):\n    opt.zero_grad()\n    p.grad = None\n",
        "zero_grad drops them by default",
    )


# Evaluation

EVALUATION = """
    import torch

    @torch.jit.ignore
    def accuracy(a, b):
        return (a == b).float()

    def evaluate(model, loader):
        \"\"\"Mean loss.\"\"\"
        model.eval()
        total = 0.0
        for x, y in loader:
            total += model(x, y).item()
        model.train()
        return total / len(loader)

    def train(model, loader, opt):
        for x, y in loader:
            model(x, y).backward()
            opt.step()
"""


def test_inference_mode_decorates_an_evaluation(tmp_path: Path) -> None:
    text = apply(tmp_path, "inference_mode", EVALUATION)["train.py"]
    assert changed(EVALUATION, text) == ([], ["@torch.inference_mode()"])
    assert "@torch.inference_mode()\ndef evaluate(model, loader):" in text


def test_inference_mode_is_no_grad_where_tensors_are_kept(tmp_path: Path) -> None:
    model = "import torch\n\nclass M(torch.nn.Module):\n    def forward(self, x):\n        self.cache = x\n        return x\n"
    assert (
        "@torch.no_grad()" in apply(tmp_path, "inference_mode", {"train.py": EVALUATION, "model.py": model})["train.py"]
    )


def test_inference_mode_wraps_evaluation_inside_a_training_loop(tmp_path: Path) -> None:
    before = """
        import torch

        def main(model, opt, train_loader, val_loader):
            for epoch in range(3):
                for x, y in train_loader:
                    model(x, y).backward()
                    opt.step()
                model.eval()
                # how well are we doing?
                loss = 0.0
                for x, y in val_loader:
                    loss += model(x, y).item()
                model.train()
                print(loss)
    """
    text = apply(tmp_path, "inference_mode", before)["train.py"]
    assert (
        "        model.eval()\n        # how well are we doing?\n        with torch.inference_mode():\n            loss = 0.0\n            for x"
        in text
    )
    assert "        model.train()\n        print(loss)\n" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("def evaluate", "@torch.no_grad()\n    def evaluate"), "guarded"),
        (("total += model(x, y).item()", "loss = model(x, y); loss.backward(); total += loss.item()"), "guarded"),
    ],
)
def test_inference_mode_refuses(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    refuse(tmp_path, "inference_mode", EVALUATION.replace(*change), why)


def test_inference_mode_leaves_frozen_layers_alone(tmp_path: Path) -> None:
    """ultralytics' `_model_train` calls eval() on frozen norm layers while the model trains."""
    text = """
    import torch

    class Trainer:
        def _model_train(self):
            self.model.train()
            for n, m in self.model.named_modules():
                if any(f in n for f in self.frozen):
                    m.eval()
    """
    refuse(tmp_path, "inference_mode", text, "no evaluation that records gradients")


def test_inference_mode_leaves_lightning_to_lightning(tmp_path: Path) -> None:
    text = "import lightning as L\nimport torch\n\nclass Lit(L.LightningModule):\n    def predict(self, x):\n        return self.model(x).argmax()\n"
    refuse(tmp_path, "inference_mode", text, "guarded")


# Encoding


def test_hoist_encoding_of_a_whole_text_for_each_batch(tmp_path: Path) -> None:
    before = """
        import torch

        class CharDataset:
            def __init__(self, text, block_size):
                self.text = text
                self.stoi = {c: i for i, c in enumerate(sorted(set(text)))}
                self.split = int(0.9 * len(text))

            def encode(self, s):
                return [self.stoi[c] for c in s]

            def get_batch(self, split, n, generator):
                # the part that we train on
                text = self.text[: self.split] if split == "train" else self.text[self.split :]
                data = torch.tensor(self.encode(text), dtype=torch.long)
                ix = torch.randint(len(data) - 8, (n,), generator=generator)
                return torch.stack([data[i : i + 8] for i in ix])
    """
    text = apply(tmp_path, "hoist_encoding", before)["train.py"]
    assert (
        "        self.encoded_text = torch.tensor(self.encode(self.text), dtype=torch.long)\n\n    def encode" in text
    )
    assert (
        '        # the part that we train on\n        data = self.encoded_text[: self.split] if split == "train" else self.encoded_text[self.split :]\n'
        in text
    )
    torch = pytest.importorskip("torch")
    spaces: list[dict[str, Any]] = [{}, {}]
    exec(textwrap.dedent(before), spaces[0])
    exec(text, spaces[1])
    batches = [
        s["CharDataset"]("the quick brown fox jumps over the lazy dog " * 9, 8).get_batch(split, 4, torch.Generator().manual_seed(1))
        for s in spaces for split in ("train", "val")
    ]  # fmt: skip
    assert torch.equal(batches[0], batches[2]) and torch.equal(batches[1], batches[3])


def test_hoist_encoding_of_mingpt_items(tmp_path: Path) -> None:
    before = """
        import torch
        from torch.utils.data import Dataset

        class CharDataset(Dataset):
            def __init__(self, data, block_size):
                self.stoi = {c: i for i, c in enumerate(sorted(set(data)))}
                self.block_size = block_size
                self.data = data

            def __getitem__(self, idx):
                # grab a chunk of (block_size + 1) characters
                chunk = self.data[idx:idx + self.block_size + 1]
                # encode every character to an integer
                dix = [self.stoi[s] for s in chunk]
                x = torch.tensor(dix[:-1], dtype=torch.long)
                y = torch.tensor(dix[1:], dtype=torch.long)
                return x, y
    """
    text = apply(tmp_path, "hoist_encoding", before)["train.py"]
    assert "self.encoded_data = torch.tensor([self.stoi[s] for s in self.data])" in text or "dtype=torch.long" in text
    assert (
        "dix = self.encoded_data[idx:idx + self.block_size + 1]" in text
        and "x = dix[:-1]" in text
        and "y = dix[1:]" in text
    )
    assert "# grab a chunk" in text and "# encode every character" in text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "def grow",
            "def grow(self):\n            self.text = self.text + '!'\n\n        def other",
            "changes in grow",
        ),
        ("[self.stoi[c] for c in s]", "[self.stoi[c] for c in s if c in self.stoi]", "no encoding, element by element"),
        ("return torch.stack", "data[0] = 1\n            return torch.stack", "changed in place"),
        ("return torch.stack", "print(text)\n            return torch.stack", "is used as well"),
    ],
    ids=["text_grows", "filtered", "written_into", "text_used"],
)
def test_hoist_encoding_refuses(tmp_path: Path, old: str, new: str, why: str) -> None:
    text = """
    import torch

    class D:
        def __init__(self, text):
            self.text = text
            self.stoi = {c: i for i, c in enumerate(text)}

        def grow(self):
            pass

        def encode(self, s):
            return [self.stoi[c] for c in s]

        def batch(self, a, b):
            text = self.text[a:b]
            data = torch.tensor(self.encode(text))
            return torch.stack([data])
    """
    assert old in text
    refuse(tmp_path, "hoist_encoding", text.replace(old, new), why)


# Statistics


def test_batch_item_logging_takes_the_norm_that_clipping_computes(tmp_path: Path) -> None:
    before = """
        import torch

        def train(model, opt, loader, log):
            for x, y in loader:
                model(x, y).backward()
                # keep an eye on the gradients
                total = 0.0
                for p in model.parameters():
                    total += p.grad.norm().item() ** 2
                grad_norm = total**0.5
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                log.append(grad_norm)
    """
    text = apply(tmp_path, "batch_item_logging", before)["train.py"]
    assert (
        "        # keep an eye on the gradients\n        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()\n"
        in text
    )
    assert "total" not in text


def test_batch_item_logging_of_a_function_of_the_norm(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    before = """
        import torch

        def grad_norm(model):
            total = 0.0
            for p in model.parameters():
                if p.grad is not None:
                    param_norm = p.grad.data.norm(2)
                    total += param_norm.item() ** 2
            return total ** (1. / 2)
    """
    text = apply(tmp_path, "batch_item_logging", before)["train.py"]
    assert "torch._foreach_norm" in text
    model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
    model[0](torch.ones(2, 5)).sum().backward()  # the second layer has no gradient
    spaces: list[dict[str, Any]] = [{}, {}]
    exec(textwrap.dedent(before), spaces[0])
    exec(text, spaces[1])
    assert spaces[1]["grad_norm"](model) == pytest.approx(spaces[0]["grad_norm"](model), rel=1e-6)


def test_batch_item_logging_reads_losses_and_parameters_in_one_go(tmp_path: Path) -> None:
    before = """
        import torch

        def train(model, loader, every):
            losses = []
            for step, x in enumerate(loader):
                loss = model(x)
                stats = {n: p.norm().item() for n, p in model.named_parameters()}
                worst = loss.max().item()
                if step % every == 0:
                    print(step, worst)
                losses.append(loss.item())
                save(stats)
            return losses
    """
    text = apply(tmp_path, "batch_item_logging", before)["train.py"]
    assert "losses.append(loss.detach())" in text and "losses = torch.stack(losses).tolist() if losses else []" in text
    assert "stats = dict(zip([n for n, p in model.named_parameters()], torch.stack(torch._foreach_norm([p for" in text
    assert (
        "        if step % every == 0:\n            worst = loss.max().item()\n        if step % every == 0:\n" in text
    )


def test_batch_item_logging_refuses_what_is_needed_at_once(tmp_path: Path) -> None:
    text = """
    def train(model, loader):
        for x in loader:
            loss = model(x).item()
            if loss > 9:
                break
            print(loss)
    """
    refuse(tmp_path, "batch_item_logging", text, "no statistic")


# Constants


def test_cache_constant_takes_a_rotary_table_out_of_the_forward_pass(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    before = """
        import math
        import torch
        import torch.nn as nn

        class Block(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.dim = dim

            def forward(self, x):
                B, T, C = x.shape
                # rotary angles
                position = torch.arange(T, device=x.device)
                rate = torch.exp(torch.arange(0, self.dim, 2, device=x.device) * (-math.log(10000.0) / self.dim))
                angle = torch.outer(position, rate)
                x = x * angle.cos().repeat(1, 2) + angle.sin().repeat(1, 2)
                return x
    """
    text = apply(tmp_path, "cache_constant", before)["train.py"]
    assert text.startswith("\nimport functools\nimport math\n")
    assert "@functools.lru_cache(maxsize=32)\n@torch.inference_mode(False)\ndef _cached_angle(T, device, dim):" in text
    assert "        # rotary angles\n        angle = _cached_angle(T, x.device, self.dim)\n" in text
    spaces: list[dict[str, Any]] = [{}, {}]
    exec(textwrap.dedent(before), spaces[0])
    exec(text, spaces[1])
    x = torch.randn(2, 6, 8, requires_grad=True)
    with torch.inference_mode():
        spaces[1]["Block"](8)(x)  # evaluation first must not spoil training
    out = spaces[1]["Block"](8)(x)
    out.sum().backward()
    assert torch.equal(out, spaces[0]["Block"](8)(x))


def test_cache_constant_decorates_a_function_that_builds_a_table(tmp_path: Path) -> None:
    before = """
        import torch
        import torch.nn as nn

        def sinusoid(length, dim, device):
            \"\"\"Positions.\"\"\"
            table = torch.zeros(length, dim, device=device)
            position = torch.arange(length, device=device).unsqueeze(1)
            table[:, 0::2] = torch.sin(position)
            return table

        class Encoder(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.dim = dim

            def forward(self, x):
                return x + sinusoid(x.size(1), self.dim, x.device)
    """
    text = apply(tmp_path, "cache_constant", before)["train.py"]
    assert "@functools.lru_cache(maxsize=32)\n@torch.inference_mode(False)\ndef sinusoid(length, dim, device):" in text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mask = torch.tril(torch.ones(T, T)) * x.mean()", "no forward pass"),
        ("mask = torch.rand(T, T)", "no forward pass"),
        ("mask = torch.ones(T, T); mask[0] = 0", "no forward pass"),
        ("mask = torch.tril(torch.ones(T, T))\n            mask += x", "changed in place"),
        ("mask = torch.arange(T)", "no forward pass"),
    ],
    ids=["reads_the_input", "random", "two_on_a_line", "in_place", "too_cheap"],
)
def test_cache_constant_refuses(tmp_path: Path, line: str, why: str) -> None:
    text = f"""
    import torch

    class M(torch.nn.Module):
        def forward(self, x):
            B, T = x.shape
            {line}
            return x * mask
    """
    refuse(tmp_path, "cache_constant", text, why)


# Loading

LOADER = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset):
        def __getitem__(self, i):
            return decode(self.paths[i])

    loader = DataLoader(
        Images(),
        batch_size=32,  # fits
        shuffle=True,
    )
"""


def test_dataloader_gets_workers_in_the_formatting_of_the_call(tmp_path: Path) -> None:
    text = apply(tmp_path, "dataloader", LOADER, GPU)["train.py"]
    added = "    shuffle=True,\n    num_workers=7,\n    persistent_workers=True,\n    pin_memory=True,\n)"
    assert added in text and "# fits" in text


@pytest.mark.parametrize(
    ("old", "new", "spec", "why"),
    [
        ("decode(", "random.random() + decode(", GPU, "draws random numbers"),
        ("shuffle=True", "shuffle=True", WRITER, "one core"),
        ("shuffle=True", "collate_fn=lambda b: b", GPU, "lambda"),
        ("Images(),", "MyIterableDataset(),", GPU, "iterable"),
        ("shuffle=True", "**options", GPU, "dictionary"),
    ],
    ids=["random", "one_core", "lambda", "iterable", "dictionary"],
)
def test_dataloader_refuses(tmp_path: Path, old: str, new: str, spec: dict[str, Any], why: str) -> None:
    assert old in LOADER
    refuse(tmp_path, "dataloader", LOADER.replace(old, new), why, spec)


# Generation


def test_use_cache_in_generate(tmp_path: Path) -> None:
    before = "from transformers import X\nout = model.generate(**batch, use_cache=False, do_sample=False)\nmodel.config.use_cache = False\n"
    after = apply(tmp_path, "use_cache", before)["train.py"]
    assert (
        after
        == "from transformers import X\nout = model.generate(**batch, do_sample=False)\nmodel.config.use_cache = True\n"
    )
    refuse(tmp_path / "t", "use_cache", before + "loss.backward()\n", "trains as well")


def test_use_cache_in_a_hand_written_loop(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    before = """
        import torch
        from transformers import LlamaForCausalLM

        def generate(model, input_ids, n):
            # greedy
            for _ in range(n):
                logits = model(input_ids=input_ids).logits[:, -1, :]
                new = logits.argmax(dim=-1, keepdim=True)
                input_ids = torch.cat([input_ids, new], dim=1)
            return input_ids
    """
    text = apply(tmp_path, "use_cache", before)["train.py"]
    assert "    # greedy\n    past_key_values, step_ids = None, input_ids\n    for _ in range(n):\n" in text
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    results = []
    for source in (textwrap.dedent(before), text):
        space: dict[str, Any] = {}
        exec(source, space)
        with torch.no_grad():
            results.append(space["generate"](model, torch.arange(6).view(2, 3), 6))
    assert torch.equal(*results)


def test_use_cache_refuses_a_loop_that_reads_all_logits(tmp_path: Path) -> None:
    text = """
    import torch, transformers
    for _ in range(9):
        logits = model(ids).logits
        new = logits.mean(1).argmax(-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    """
    refuse(tmp_path, "use_cache", text, "earlier positions")


def test_pad_to_longest(tmp_path: Path) -> None:
    before = "batch = tokenizer(texts, padding='max_length', max_length=256, return_tensors='pt')  # fixed\n"
    after = apply(tmp_path, "pad_to_longest", before)["train.py"]
    assert after == "batch = tokenizer(texts, padding='longest', max_length=256, return_tensors='pt')  # fixed\n"
    refuse(
        tmp_path / "c",
        "pad_to_longest",
        "import torch\nmodel = torch.compile(model)\n" + before,
        "compiled for fixed shapes",
    )
    refuse(
        tmp_path / "m",
        "pad_to_longest",
        f"def f(texts):\n    {before}data = data.map(f, batched=True)\n",
        "padded once by map",
    )


REQUESTS = """
    import torch
    from transformers import AutoModelForCausalLM

    def main(model, tokenizer, prompts, f):
        for prompt in prompts:
            # one at a time
            batch = tokenizer(prompt, return_tensors="pt")
            out = model.generate(**batch, max_new_tokens=8, do_sample=False)
            text = tokenizer.decode(out[0], skip_special_tokens=True)
            f.write(prompt + text)
"""


def test_batch_requests(tmp_path: Path) -> None:
    text = apply(tmp_path, "batch_requests", REQUESTS)["train.py"]
    assert (
        "    for start in range(0, len(prompts), 8):\n        # one at a time\n        group = prompts[start : start + 8]\n"
        in text
    )
    assert 'batch = tokenizer(group, return_tensors="pt", padding=True, padding_side="left")' in text
    assert (
        "        for row, prompt in enumerate(group):\n            text = tokenizer.decode(out[row], skip_special_tokens=True)\n"
        in text
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("do_sample=False", "do_sample=True", "sampled"),
        (", skip_special_tokens=True", "", "end early"),
        ("out[0]", "out", "as a whole"),
        ("max_new_tokens=8", "max_new_tokens=8, streamer=s", "streamer"),
    ],
)
def test_batch_requests_refuses(tmp_path: Path, old: str, new: str, why: str) -> None:
    refuse(tmp_path, "batch_requests", REQUESTS.replace(old, new), why)


# Settings


def test_deterministic_fill(tmp_path: Path) -> None:
    before = "import torch\n\ndef seed_all():\n    torch.use_deterministic_algorithms(True, warn_only=True)  # repeatable\n    torch.manual_seed(0)\n"
    after = apply(tmp_path, "deterministic_fill", before)["train.py"]
    assert changed(before, after) == ([], ["torch.utils.deterministic.fill_uninitialized_memory = False"])
    refuse(
        tmp_path / "n",
        "deterministic_fill",
        "import torch\ntorch.use_deterministic_algorithms(False)\n",
        "does not switch",
    )


VISION = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

    if __name__ == "__main__":
        model = Net().to("cuda")
        for x in loader:
            model(x.to("cuda")).sum().backward()
"""


def test_settings_of_a_vision_job(tmp_path: Path) -> None:
    assert (
        "import nn\n\ntorch.backends.cudnn.benchmark = True\n"
        in apply(tmp_path / "a", "cudnn_benchmark", VISION, GPU)["train.py"]
    )
    tf32 = {**GPU, "constraints": {"precision": "tf32"}}
    assert (
        '\ntorch.set_float32_matmul_precision("high")\n'
        in apply(tmp_path / "b", "matmul_precision", VISION, tf32)["train.py"]
    )
    text = apply(tmp_path / "c", "channels_last", VISION)["train.py"]
    assert 'model = Net().to("cuda").to(memory_format=torch.channels_last)' in text
    refuse(tmp_path / "d", "cudnn_benchmark", VISION, "no GPU")
    refuse(tmp_path / "e", "matmul_precision", VISION, "does not allow TF32", GPU)
    deterministic = VISION.replace("if __name__", "torch.use_deterministic_algorithms(True)\n    if __name__")
    refuse(tmp_path / "f", "cudnn_benchmark", deterministic, "deterministic", GPU)
    refuse(tmp_path / "g", "channels_last", VISION.replace("Conv2d(3, 8, 3)", "Linear(3, 8)"), "no two-dimensional")


def test_nonblocking_copies(tmp_path: Path) -> None:
    before = (
        LOADER.replace("shuffle=True,", "shuffle=True, num_workers=2,")
        + "\n    for x, y in loader:\n        x = x.to(device)\n        y = y.cuda()\n"
    )
    text = apply(tmp_path, "nonblocking_copies", before, GPU)["train.py"]
    assert (
        "x.to(device, non_blocking=True)" in text and "y.cuda(non_blocking=True)" in text and "pin_memory=True" in text
    )
    refuse(tmp_path / "c", "nonblocking_copies", before, "no GPU")
    refuse(tmp_path / "l", "nonblocking_copies", "for x in loader:\n    x = x.to(device)\n", "not pinned", GPU)


def test_compilation(tmp_path: Path) -> None:
    before = """
        import torch
        from torch import nn

        class GPT(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.blocks = nn.ModuleList([Block(n) for _ in range(n)])

        def main():
            model = GPT(4)  # small
            opt = torch.optim.AdamW(model.parameters())
            for x in data:
                model(x).backward()
    """
    for name, line in (("compile_model", "model.compile()"), ("compile_dynamic", "model.compile(dynamic=True)")):
        text = apply(tmp_path / name, name, before)["train.py"]
        assert f"    model = GPT(4)  # small\n    {line}\n" in text
        for made in ("GPT(4).to(device)", "GPT(n=4).cuda()", "GPT.from_pretrained(path).to(device)"):
            moved = before.replace("GPT(4)  # small", f"{made}  # small")
            text = apply(tmp_path / name / made[:5] / str(len(made)), name, moved)["train.py"]
            assert f"    model = {made}  # small\n    {line}\n" in text
        wrapped = before.replace("GPT(4)  # small", "nn.parallel.DistributedDataParallel(GPT(4)).to(device)")
        refuse(tmp_path / name / "w", name, wrapped, "no line that makes the model")
    assert (
        "        for block in self.blocks:\n            block.compile()\n"
        in apply(tmp_path / "r", "compile_regions", before)["train.py"]
    )
    short = {**WRITER, "measure": {"horizon": {"steps": 24}}}
    for name in ("compile_model", "compile_dynamic", "compile_regions"):
        refuse(tmp_path / "s" / name, name, before, "runs 24 steps", short)


# Averages, weights, files, lengths, backends


@pytest.mark.parametrize(
    "loop",
    [
        "for e, p in zip(ema.parameters(), model.parameters()):\n    # slow one\n    e.mul_(d).add_(p, alpha=1 - d)\n",
        "for e, p in zip(ema.parameters(), model.parameters()):\n    e.lerp_(p, 1 - d)\n",
        "msd = model.state_dict()\nfor k, v in ema.state_dict().items():\n    if v.dtype.is_floating_point:  # FP32\n        v *= d\n        v += (1 - d) * msd[k].detach()\n",
    ],
    ids=["chained", "lerp", "ultralytics"],
)
def test_foreach_ema_computes_the_same_average(tmp_path: Path, loop: str) -> None:
    torch = pytest.importorskip("torch")
    before = "import torch\n\n@torch.no_grad()\ndef update(ema, model, d):\n" + textwrap.indent(loop, "    ")
    text = apply(tmp_path, "foreach_ema", before)["train.py"]
    assert "torch._foreach_mul_(averages, d)\n    torch._foreach_add_(averages, values, alpha=1 - d)\n" in text
    assert ("# slow one" in before) == ("# slow one" in text) and ("# FP32" in before) == ("# FP32" in text)
    results = []
    for source in (before, text):
        torch.manual_seed(0)
        ema, model = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)) for _ in range(2))
        space: dict[str, Any] = {}
        exec(source, space)
        space["update"](ema, model, 0.9)
        results.append(list(ema.state_dict().values()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_foreach_ema_refuses_a_decay_for_each_tensor(tmp_path: Path) -> None:
    text = "import torch\n\ndef ema(pairs):\n    for e, p, d in pairs:\n        e.mul_(d).add_(p, alpha=1 - d)\n"
    refuse(tmp_path, "foreach_ema", text, "differs from tensor to tensor")


DECODE = """
    import torch

    class Pipeline:
        def decode(self, latents):
            self.vae.to(self.device)  # needed now
            image = self.vae.decode(latents)
            self.vae.to("cpu")
            return image.cpu()
"""


def test_keep_on_device(tmp_path: Path) -> None:
    text = apply(tmp_path, "keep_on_device", DECODE)["train.py"]
    assert changed(DECODE, text) == (['self.vae.to("cpu")'], [])
    refuse(tmp_path / "t", "keep_on_device", DECODE + "\n    def train(loss):\n        loss.backward()\n", "trains")
    refuse(
        tmp_path / "m", "keep_on_device", DECODE, "no more memory", {**WRITER, "constraints": {"memory_growth": 1.0}}
    )
    refuse(
        tmp_path / "o", "keep_on_device", DECODE.replace("self.vae.to(self.device)", "pass"), "no function that moves"
    )


FILES = """
    import numpy as np
    from PIL import Image

    class Photos:
        def __init__(self, paths):
            self.paths = paths

        def __getitem__(self, i):
            path = self.paths[i]
            # 640 x 480
            image = np.array(Image.open(path))
            return image / 255
"""


def test_cache_decoded(tmp_path: Path) -> None:
    text = apply(tmp_path, "cache_decoded", FILES)["train.py"]
    assert "        self.paths = paths\n        self._decoded = {}\n" in text
    assert (
        "        # 640 x 480\n        if i not in self._decoded:\n            self._decoded[i] = np.array(Image.open(path))\n        image = self._decoded[i]\n"
        in text
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return image / 255", "image[0] = 0\n            return image", "changed in place"),
        ("path = self.paths[i]", "path = self.paths[choice()]", "more than the index"),
        ("np.array(Image.open(path))", "Image.open(path)", "no data set"),
        ("class Photos", "loader = DataLoader(num_workers=4)\n\n    class Photos", "would forget"),
    ],
)
def test_cache_decoded_refuses(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert old in FILES
    refuse(tmp_path, "cache_decoded", FILES.replace(old, new), why)


def test_length_bucketing_needs_a_free_order(tmp_path: Path) -> None:
    before = (
        "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir=out, learning_rate=1e-4)\n"
    )
    refuse(tmp_path, "length_bucketing", before, "order is fixed")
    free = {**WRITER, "constraints": {"data_order": "free"}}
    text = apply(tmp_path / "f", "length_bucketing", before, free)["train.py"]
    assert 'learning_rate=1e-4, train_sampling_strategy="group_by_length")' in text
    old = before.replace("learning_rate=1e-4", "group_by_length=False")
    assert "group_by_length=True)" in apply(tmp_path / "o", "length_bucketing", old, free)["train.py"]
    refuse(tmp_path / "n", "length_bucketing", "import torch\n", "no Hugging Face trainer", free)


def test_sdpa_backend(tmp_path: Path) -> None:
    before = (
        "from transformers import AutoModel\nmodel = AutoModel.from_pretrained(name, attn_implementation='eager')\n"
    )
    assert "attn_implementation='sdpa'" in apply(tmp_path, "sdpa_backend", before)["train.py"]
    refuse(tmp_path / "w", "sdpa_backend", before + "model(x, output_attentions=True)\n", "attention weights")


def test_cudnn_attention(tmp_path: Path) -> None:
    source = 'import torch\nimport torch.nn.functional as F\n\nif __name__ == "__main__":\n    F.scaled_dot_product_attention(q, k, v)\n'
    text = apply(tmp_path, "cudnn_attention", source, GPU)["train.py"]
    assert "import torch.nn.functional as F\n\ntorch.backends.cuda.enable_cudnn_sdp(False)\n" in text
    refuse(tmp_path / "c", "cudnn_attention", source, "no GPU")
    refuse(tmp_path / "f", "cudnn_attention", source, "forbid", {**GPU, "constraints": {"forbid": ["global_flags"]}})
    refuse(tmp_path / "n", "cudnn_attention", "import torch\n", "no fused attention", GPU)
