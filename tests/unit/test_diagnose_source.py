"""What the source says, on the shapes of code that jobs have."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from scripts.diagnose import source


def read(tmp_path: Path, text: str) -> source.Source:
    (tmp_path / "job.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return source.read(tmp_path)


def kinds(found: source.Source) -> list[tuple[str, int]]:
    return [(s.kind, s.line) for s in found.sites]


@pytest.mark.parametrize(
    "body",
    [
        "s = q @ k.transpose(-2, -1)\n    p = F.softmax(s, dim=-1)\n    return p @ v",
        "return torch.softmax(torch.matmul(q, k), -1) @ v",
        "s = torch.einsum('bqd,bkd->bqk', q, k)\n    s = s.softmax(-1)\n    return torch.bmm(s, v)",
        "s = torch.baddbmm(bias, q, k)\n    return torch.matmul(nn.functional.softmax(s, -1), v)",
    ],
)
def test_handwritten_attention_is_two_products_around_a_softmax(tmp_path: Path, body: str) -> None:
    found = read(
        tmp_path, f"import torch\nfrom torch.nn import functional as F\n\ndef forward(q, k, v, bias):\n    {body}\n"
    )
    sites = [s for s in found.sites if s.kind == "attention_handwritten"]
    assert [(s.function, s.line) for s in sites] == [("forward", 5)]


@pytest.mark.parametrize(
    "body",
    [
        "return F.softmax(self.head(x) @ w, -1)",
        "a = x @ w\n    b = a @ u\n    return F.softmax(b, -1)",
        "return F.scaled_dot_product_attention(q, k, v)",
    ],
)
def test_other_softmaxes_are_no_attention(tmp_path: Path, body: str) -> None:
    found = read(tmp_path, f"from torch.nn import functional as F\n\ndef forward(x, w, u, q, k, v):\n    {body}\n")
    assert "attention_handwritten" not in [s.kind for s in found.sites]


def test_evaluation_without_no_grad_is_told_from_the_three_ways_to_have_it(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import torch

        def evaluate(model, xs):
            model.eval()
            return sum(model(x) for x in xs)

        @torch.no_grad()
        def validate(model, xs):
            model.eval()
            return sum(model(x) for x in xs)

        def test(model, xs):
            with torch.inference_mode():
                for x in xs:
                    model(x)

        def val(model, xs):
            model.eval()
            torch.set_grad_enabled(False)

        def train(model):
            model.eval()
            model(1).backward()
        """,
    )
    assert {s.function: s.detail["no_grad"] for s in found.sites if s.kind == "evaluation"} == {
        "evaluate": False,
        "validate": True,
        "test": True,
        "val": True,
    }


def test_sites_know_their_loops_and_guards(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        import torch

        def main(model, loader):
            torch.save(model, "start")
            for epoch in range(3):
                for step, x in enumerate(loader):
                    loss = model(x)
                    loss.backward()
                    if step % 10 == 0:
                        print(loss.item())
        """,
    )
    where = {(s.kind, s.callee): (s.loops, s.guard) for s in found.sites}
    assert where["checkpoint", "save"] == (0, None)
    assert where["backward", "backward"] == (2, None)
    assert where["synchronisation", "item"] == (2, "step % 10 == 0")
    assert where["logging", "print"] == (2, "step % 10 == 0")


def test_what_is_computed_to_be_read_belongs_to_the_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        def check(x, y, loss):
            if not torch.isfinite(x.sum()).item():
                raise FloatingPointError
            right = (x.argmax(-1) == y).float().mean().item()
            return float(x.norm()), loss.item(), right
        """,
    )
    reads = [(s.callee, s.detail["read"]) for s in found.sites if s.kind == "synchronisation"]
    assert ("item", ["isfinite", "sum"]) in reads
    assert ("item", ["", "argmax", "float", "mean"]) in reads
    assert ("float", ["norm"]) in reads and ("item", []) in reads


def test_import_aliases_are_resolved(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        from torch import optim
        from torch.optim import AdamW as Optimizer
        from torch.utils.data import DataLoader as Loader

        a = optim.SGD(ps, lr=1)
        b = Optimizer(ps, lr=1, fused=True)
        c = Loader(data, num_workers=4, pin_memory=True)
        """,
    )
    optimizers = [(s.detail["class"], s.detail["fused"]) for s in found.sites if s.kind == "optimizer"]
    assert optimizers == [("SGD", None), ("AdamW", True)]
    loader = next(s for s in found.sites if s.kind == "dataloader")
    assert (loader.detail["num_workers"], loader.detail["pin_memory"], loader.detail["batch_size"]) == (4, True, None)


def test_padding_to_a_constant_is_told_from_padding_to_the_longest(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        def constant(rows):
            return [ids + [0] * (MAX_LENGTH - len(ids)) for ids in rows]

        def longest(rows):
            width = max(len(ids) for ids in rows)
            return [ids + [0] * (width - len(ids)) for ids in rows]

        def hugging(tokenizer, texts):
            return tokenizer(texts, padding="max_length", max_length=512)
        """,
    )
    assert {(s.function, s.detail["how"]) for s in found.sites if s.kind == "padding"} == {
        ("constant", "by hand"),
        ("hugging", "tokenizer"),
    }


def test_loops_over_parameters_are_told_apart(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        def statistics(model):
            for p in model.parameters():
                print(p.grad.norm().item())

        def update(ema, model):
            for e, p in zip(ema.parameters(), model.parameters()):
                e.mul_(0.9).add_(p, alpha=0.1)

        def freeze(model):
            for p in model.parameters():
                p.requires_grad_(False)
        """,
    )
    wanted = {"parameter_statistics", "ema_loop", "parameter_loop"}
    assert {(s.kind, s.function) for s in found.sites if s.kind in wanted} == {
        ("parameter_statistics", "statistics"),
        ("ema_loop", "update"),
        ("parameter_loop", "freeze"),
    }


def test_files_that_do_not_parse_are_named_and_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n", encoding="utf-8")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    found = read(tmp_path, "x = 1\n")
    assert found.unreadable == ["broken.py", "latin.py"]
    assert list(found.texts) == ["job.py"]


def test_excerpt_marks_the_line_and_stays_in_the_file() -> None:
    assert source.excerpt(["a", "b", "c"], 1, 1) == ">    1  a\n     2  b"


def test_the_demo_job_has_the_sites_that_its_findings_need() -> None:
    found = source.read(Path(__file__).parents[2] / "workloads" / "minigpt")
    places = {(s.kind, s.path, s.function) for s in found.sites}
    assert ("attention_handwritten", "model.py", "CausalSelfAttention.forward") in places
    assert ("encoding", "data.py", "CharDataset.get_batch") in places
    assert ("evaluation", "train.py", "evaluate") in places
    assert ("parameter_statistics", "train.py", "main") in places
    assert ("optimizer", "train.py", "main") in places


def test_a_constructor_that_ends_in_eval_evaluates_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, "class Pipeline:\n    def __init__(self, net):\n        self.net = net.eval()\n")
    assert "evaluation" not in [s.kind for s in found.sites]
