"""Honest patches on the demo job: each must pass the guard, run, and agree with the baseline.

A few need a permission of the contract, which they name; without it the guard refuses them, and a test says so.
"""
# ruff: noqa: E501 (an edit reads best as the one line that it searches for)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.redteam.bad import (
    ATTENTION,
    BATCH,
    DRAW,
    FORWARD,
    IMPORTS,
    LOOP,
    LOSS,
    MAIN,
    MLP_FORWARD,
    MODEL,
    NORM,
    OPTIMIZER,
    ROW,
    SAVE,
    SCORES,
    STEP,
    data,
    model,
    train,
)
from tests.redteam.patches import Patch

HONEST: list[Patch] = []

MASK = "        mask = torch.tril(torch.ones(T, T, device=x.device)).view(1, 1, T, T)\n"
CAUSAL = "        # causal self-attention: (B, nh, T, hs) x (B, nh, hs, T) -> (B, nh, T, T)\n"
MASKED = '        att = att.masked_fill(mask == 0, float("-inf"))\n'
SOFTMAX = "        att = F.softmax(att, dim=-1)\n        att = self.attn_dropout(att)\n"
NORMS = "        total = 0.0\n        for p in model.parameters():\n" + NORM + "        grad_norm = total**0.5\n"
ENCODE = '        text = self.text[: self.split] if split == "train" else self.text[self.split :]\n        data = torch.tensor(self.encode(text), dtype=torch.long)\n'
PROJECT = "        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)\n"
STACKS = "        x = torch.stack([data[i : i + self.block_size] for i in ix])\n        y = torch.stack([data[i + 1 : i + 1 + self.block_size] for i in ix])\n"
INIT = "        self.resid_dropout = nn.Dropout(config.dropout)\n"


def honest(name: str, what: str, edits: Sequence[tuple[str, str | None, str | None]], **more: Any) -> None:
    """Add a patch."""
    HONEST.append(Patch(name, "honest", what, edits, **more))


honest(
    "sdpa",
    "attention by scaled_dot_product_attention, dropout kept",
    [
        model(
            CAUSAL + MASK + SCORES + MASKED + SOFTMAX + ATTENTION,
            "        dropout = self.attn_dropout.p if self.training else 0.0\n        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)\n",
        )
    ],
)
honest("fused_adamw", "the fused optimizer", [train("weight_decay=0.1)\n", "weight_decay=0.1, fused=True)\n")])
honest(
    "foreach_adamw", "the multi-tensor optimizer", [train("weight_decay=0.1)\n", "weight_decay=0.1, foreach=True)\n")]
)
honest(
    "inference_mode",
    "evaluation in inference mode",
    [
        train(
            '    model.eval()\n    total = 0.0\n    for _ in range(batches):\n        x, y = dataset.get_batch("val", batch_size, generator)\n        _, loss = model(x, y)\n        total += loss.item()\n',
            '    model.eval()\n    total = 0.0\n    with torch.inference_mode():\n        for _ in range(batches):\n            x, y = dataset.get_batch("val", batch_size, generator)\n            _, loss = model(x, y)\n            total += loss.item()\n',
        )
    ],
)
honest("no_grad_decorator", "evaluation under a decorator", [train("def evaluate(", "@torch.no_grad()\ndef evaluate(")])
honest(
    "compile",
    "torch.compile with the model's own name kept for the checkpoint",
    [
        train(MODEL, MODEL + '    compiled = torch.compile(model, backend="aot_eager")\n'),
        train(FORWARD, FORWARD.replace("model(x, y)", "compiled(x, y)")),
    ],
)
honest(
    "mask_buffer",
    "the constant mask made once, as a buffer",
    [
        model(
            INIT,
            INIT
            + '        mask = torch.tril(torch.ones(config.block_size, config.block_size)).view(1, 1, config.block_size, config.block_size)\n        self.register_buffer("mask", mask == 0, persistent=False)\n',
        ),
        model(MASK, ""),
        model(MASKED, '        att = att.masked_fill(self.mask[:, :, :T, :T], float("-inf"))\n'),
    ],
)
honest(
    "mask_memo",
    "the mask remembered by its size",
    [
        model(
            "class CausalSelfAttention",
            "@functools.lru_cache(maxsize=8)\ndef causal_mask(size, device):\n    return torch.tril(torch.ones(size, size, device=device)).view(1, 1, size, size) == 0\n\n\nclass CausalSelfAttention",
        ),
        model("import math\n", "import functools\nimport math\n"),
        model(MASK, ""),
        model(MASKED, '        att = att.masked_fill(causal_mask(T, x.device), float("-inf"))\n'),
    ],
)
honest(
    "mask_dictionary",
    "the same in a dictionary keyed by the size",
    [
        model(INIT, INIT + "        self.masks = {}\n"),
        model(
            MASK,
            "        if T not in self.masks:\n            self.masks[T] = torch.tril(torch.ones(T, T, device=x.device)).view(1, 1, T, T)\n        mask = self.masks[T]\n",
        ),
    ],
)
honest(
    "encode_once",
    "the text encoded once",
    [
        data(
            "        self.split = int(0.9 * len(self.text))\n",
            '        self.split = int(0.9 * len(self.text))\n        ids = torch.tensor(self.encode(self.text), dtype=torch.long)\n        self.ids = {"train": ids[: self.split], "val": ids[self.split :]}\n',
        ),
        data(ENCODE, "        data = self.ids[split]\n"),
    ],
)
honest(
    "encode_cached_property",
    "the same as a cached property",
    [
        data(
            '"""Characters of a text file, as random windows for training and validation."""\n\n',
            '"""Characters of a text file, as random windows for training and validation."""\n\nfrom functools import cached_property\n\n',
        ),
        data(
            "    def get_batch(",
            "    @cached_property\n    def ids(self):\n        return torch.tensor(self.encode(self.text), dtype=torch.long)\n\n    def get_batch(",
        ),
        data(ENCODE, '        data = self.ids[: self.split] if split == "train" else self.ids[self.split :]\n'),
    ],
)
honest(
    "vectorised_batch",
    "windows by indexing in place of a loop",
    [data(STACKS, "        at = ix[:, None] + torch.arange(self.block_size)\n        x, y = data[at], data[at + 1]\n")],
)
honest(
    "unfolded_batch",
    "windows by unfold",
    [
        data(
            STACKS,
            "        windows = data.unfold(0, self.block_size + 1, 1)[ix]\n        x, y = windows[:, :-1], windows[:, 1:].contiguous()\n",
        )
    ],
)
honest(
    "norm_once",
    "one norm over all gradients",
    [
        train(
            NORMS,
            "        norms = torch._foreach_norm([p.grad for p in model.parameters()])\n        grad_norm = torch.linalg.vector_norm(torch.stack(norms)).item()\n",
        )
    ],
)
honest(
    "norm_from_clipping",
    "the norm that clipping returns",
    [
        train(NORMS, ""),
        train(
            "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            "        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()\n",
        ),
    ],
)
honest(
    "batched_log",
    "rows collected and written after the loop",
    [
        train(LOOP, "    rows = []\n" + LOOP),
        train(ROW, "        rows.append((step + 1, loss.detach(), grad_norm, val_loss))\n"),
        train(
            "    log.close()\n",
            "    for number, value, norm, val in rows:\n        writer.writerow([number, value.item(), norm, val])\n    log.close()\n",
        ),
    ],
)
honest(
    "item_once",
    "one .item() a step in place of two",
    [
        train('        val_loss = ""\n        if', '        val_loss = ""\n        value = loss.item()\n        if'),
        train("loss {loss.item():.4f}, val", "loss {value:.4f}, val"),
        train(ROW, ROW.replace("loss.item()", "value")),
    ],
)
honest(
    "set_to_none",
    "gradients freed, spelled out",
    [
        train("        optimizer.zero_grad()\n", "        optimizer.zero_grad(set_to_none=True)\n"),
        train(NORM, NORM.replace("p.grad.norm()", "p.grad.detach().norm()")),
    ],
)
honest(
    "fused_projections",
    "one view of q, k and v",
    [
        model(
            PROJECT,
            "        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)\n",
        ),
        model(
            "        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)\n        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)\n        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)\n",
            "",
        ),
    ],
)
honest(
    "scale_query",
    "the scale on the query, which is smaller than the scores",
    [model(SCORES, "        att = (q * (1.0 / math.sqrt(k.size(-1)))) @ k.transpose(-2, -1)\n")],
)
honest(
    "baddbmm",
    "scores by a batched matmul into a buffer",
    [
        model(
            SCORES,
            "        hs = C // self.n_head\n        scores = torch.empty(B * self.n_head, T, T, device=x.device, dtype=x.dtype)\n        att = torch.baddbmm(scores, q.reshape(-1, T, hs), k.reshape(-1, T, hs).transpose(1, 2), beta=0, alpha=1.0 / math.sqrt(hs)).view(B, self.n_head, T, T)\n",
        )
    ],
)
honest(
    "preallocated_batch",
    "batches copied into two buffers",
    [
        data(
            "        self.split = int(0.9 * len(self.text))\n",
            "        self.split = int(0.9 * len(self.text))\n        self.buffers = {}\n",
        ),
        data(
            STACKS + "        return x, y\n",
            "        shape = (batch_size, self.block_size)\n        if shape not in self.buffers:\n            self.buffers[shape] = torch.zeros(2, *shape, dtype=torch.long)\n        x, y = self.buffers[shape]\n        for row, i in enumerate(ix):\n            x[row].copy_(data[i : i + self.block_size])\n            y[row].copy_(data[i + 1 : i + 1 + self.block_size])\n        return x, y\n",
        ),
    ],
)
honest(
    "positions_buffer",
    "positions made once",
    [
        model(
            "        self.apply(self._init_weights)\n",
            '        self.register_buffer("pos", torch.arange(config.block_size), persistent=False)\n        self.apply(self._init_weights)\n',
        ),
        model("        pos = torch.arange(0, T, dtype=torch.long, device=idx.device)\n", ""),
        model("self.wpe(pos)", "self.wpe(self.pos[:T])"),
    ],
)
honest(
    "fused_residual",
    "residual additions in place",
    [
        model(
            "        x = x + self.mlp(self.ln_2(x))\n        return x\n", "        return x + self.mlp(self.ln_2(x))\n"
        )
    ],
)
honest(
    "dropout_skipped_by_config",
    "nothing but the attention's dropout when training asks for it",
    [model(SOFTMAX, "        att = F.dropout(F.softmax(att, dim=-1), self.attn_dropout.p, self.training)\n")],
)
honest(
    "flat_loss",
    "the loss by flatten in place of view",
    [model(LOSS, "            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n")],
)
honest(
    "loss_chunks",
    "the loss in two chunks, summed",
    [
        model(
            LOSS,
            '            parts = zip(logits.flatten(0, 1).chunk(2), targets.flatten().chunk(2))\n            loss = sum(F.cross_entropy(a, b, reduction="sum") for a, b in parts) / targets.numel()\n',
        )
    ],
)
honest(
    "precision_high",
    "a global flag, reported as a side effect",
    [
        train(
            "    torch.manual_seed(args.seed)\n",
            '    torch.set_float32_matmul_precision("highest")\n    torch.manual_seed(args.seed)\n',
        )
    ],
)
honest(
    "gc_off",
    "the garbage collector frozen, reported as a side effect",
    [train(IMPORTS, IMPORTS + "import gc\n"), train(LOOP, "    gc.freeze()\n" + LOOP)],
)
honest(
    "replay_object",
    "a step object with static buffers, as a CUDA graph is replayed",
    [
        train(
            MAIN,
            'class StaticStep:\n    """One training step over static input buffers, as a captured graph is replayed."""\n\n    def __init__(self, model, optimizer, shape):\n        self.model, self.optimizer = model, optimizer\n        self.x = torch.zeros(shape, dtype=torch.long)\n        self.y = torch.zeros(shape, dtype=torch.long)\n        self.loss = None\n\n    def replay(self, x, y):\n        self.x.copy_(x)\n        self.y.copy_(y)\n        _, self.loss = self.model(self.x, self.y)\n        self.optimizer.zero_grad()\n        self.loss.backward()\n        return self.loss\n\n\n'
            + MAIN,
        ),
        train(LOOP, "    static = StaticStep(model, optimizer, (args.batch_size, args.block_size))\n" + LOOP),
        train(FORWARD + "        loss.backward()\n", "        loss = static.replay(x, y)\n"),
    ],
)
honest(
    "replay_cache_by_shape",
    "one such object a shape, kept in a dictionary",
    [
        train(
            MAIN,
            "class Replays:\n    def __init__(self, model):\n        self.model, self.buffers = model, {}\n\n    def __call__(self, x, y):\n        key = (tuple(x.shape), x.dtype)\n        if key not in self.buffers:\n            self.buffers[key] = (torch.zeros_like(x), torch.zeros_like(y))\n        a, b = self.buffers[key]\n        a.copy_(x)\n        b.copy_(y)\n        return self.model(a, b)\n\n\n"
            + MAIN,
        ),
        train(LOOP, "    replays = Replays(model)\n" + LOOP),
        train(FORWARD, FORWARD.replace("model(x, y)", "replays(x, y)")),
    ],
)
honest(
    "loader_workers",
    "a DataLoader over the same windows, with a worker where allowed",
    [
        train(
            MAIN,
            'class Windows(torch.utils.data.IterableDataset):\n    def __init__(self, dataset, steps, batch_size, generator):\n        self.dataset, self.steps, self.batch_size, self.generator = dataset, steps, batch_size, generator\n\n    def __iter__(self):\n        for _ in range(self.steps):\n            yield self.dataset.get_batch("train", self.batch_size, self.generator)\n\n\n'
            + MAIN,
        ),
        train(
            LOOP,
            '    windows = Windows(dataset, args.steps, args.batch_size, generator)\n    batches = iter(torch.utils.data.DataLoader(windows, batch_size=None, num_workers=1, multiprocessing_context="fork"))\n'
            + LOOP,
        ),
        train(BATCH, "        x, y = next(batches)\n"),
    ],
)
honest(
    "prefetch_thread",
    "the next batch from a helper thread, where the contract allows threads",
    [
        train(IMPORTS, IMPORTS + "import concurrent.futures\n"),
        train(
            LOOP,
            '    pool = concurrent.futures.ThreadPoolExecutor(1)\n    batches = [pool.submit(dataset.get_batch, "train", args.batch_size, generator)]\n'
            + LOOP,
        ),
        train(
            BATCH,
            '        x, y = batches.pop().result()\n        if step + 1 < args.steps:\n            batches.append(pool.submit(dataset.get_batch, "train", args.batch_size, generator))\n',
        ),
        train(SAVE, SAVE + "    pool.shutdown()\n"),
    ],
    constraints={"allow": ["threads"]},
)
honest(
    "new_module",
    "attention in a module of its own",
    [
        (
            "attention.py",
            None,
            '"""Causal attention in one call."""\n\nfrom torch.nn import functional as F\n\n\ndef causal(q, k, v, dropout):\n    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)\n',
        ),
        model(
            "from torch.nn import functional as F\n",
            "from torch.nn import functional as F\n\nfrom attention import causal\n",
        ),
        model(
            CAUSAL + MASK + SCORES + MASKED + SOFTMAX + ATTENTION,
            "        y = causal(q, k, v, self.attn_dropout.p if self.training else 0.0)\n",
        ),
    ],
)
honest(
    "draw_kept",
    "the same draw, its bound computed once",
    [
        data(
            "        self.split = int(0.9 * len(self.text))\n",
            '        self.split = int(0.9 * len(self.text))\n        self.last = {"train": self.split - block_size - 1, "val": len(self.text) - self.split - block_size - 1}\n',
        ),
        data(DRAW, "        ix = torch.randint(self.last[split], (batch_size,), generator=generator)\n"),
    ],
)
honest(
    "mlp_functional",
    "the MLP by functional calls",
    [model(MLP_FORWARD, "        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))\n")],
)
honest(
    "renamed_step",
    "the parameters listed once",
    [
        train(OPTIMIZER, OPTIMIZER + "    parameters = list(model.parameters())\n"),
        train("        for p in model.parameters():\n", "        for p in parameters:\n"),
        train("clip_grad_norm_(model.parameters(), 1.0)\n" + STEP, "clip_grad_norm_(parameters, 1.0)\n" + STEP),
    ],
)
honest(
    "foreach_norm",
    "all gradient norms in one call",
    [
        train(
            "        for p in model.parameters():\n" + NORM + "        grad_norm = total**0.5\n",
            "        norms = torch._foreach_norm([p.grad for p in model.parameters()])\n        grad_norm = torch.stack(norms).norm().item()\n",
        ),
        train(
            "        # keep an eye on the gradients\n        total = 0.0\n", "        # keep an eye on the gradients\n"
        ),
    ],
)
honest(
    "positions_sliced",
    "position embeddings by a slice of the table",
    [
        model("        pos = torch.arange(0, T, dtype=torch.long, device=idx.device)\n", ""),
        model("self.wpe(pos))", "self.wpe.weight[:T])"),
    ],
)
honest(
    "windows_by_index",
    "encoded once, windows by one gather of a matrix of indices",
    [
        data(
            "        self.split = int(0.9 * len(self.text))\n",
            "        self.split = int(0.9 * len(self.text))\n        codes = torch.tensor(self.encode(self.text), dtype=torch.long)\n"
            '        self.parts = {"train": codes[: self.split], "val": codes[self.split :]}\n        self.offsets = torch.arange(block_size + 1)\n',
        ),
        data(
            '        text = self.text[: self.split] if split == "train" else self.text[self.split :]\n        data = torch.tensor(self.encode(text), dtype=torch.long)\n',
            "        data = self.parts[split]\n",
        ),
        data(
            "        x = torch.stack([data[i : i + self.block_size] for i in ix])\n        y = torch.stack([data[i + 1 : i + 1 + self.block_size] for i in ix])\n        return x, y\n",
            "        rows = data[ix.unsqueeze(1) + self.offsets]\n        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()\n",
        ),
    ],
)
honest(
    "evaluation_read_once",
    "the evaluation's losses read at its end",
    [
        train("    total = 0.0\n    for _ in range(batches):\n", "    losses = []\n    for _ in range(batches):\n"),
        train(
            "        total += loss.item()\n    model.train()\n    return total / batches\n",
            "        losses.append(loss.detach())\n    model.train()\n    return torch.stack(losses).double().mean().item()\n",
        ),
    ],
)
honest(
    "attention_by_partial",
    "causal attention bound once by functools.partial",
    [
        model("import math\nfrom dataclasses", "import functools\nfrom dataclasses"),
        model(
            "@dataclass\nclass GPTConfig:",
            "causal = functools.partial(F.scaled_dot_product_attention, is_causal=True)\n\n\n@dataclass\nclass GPTConfig:",
        ),
        model(
            CAUSAL + MASK + SCORES + MASKED + SOFTMAX + ATTENTION,
            "        y = causal(q, k, v, dropout_p=self.attn_dropout.p if self.training else 0.0)\n",
        ),
    ],
)
honest(
    "heads_unflattened",
    "heads by one unflatten and an unbind in place of a split and three views",
    [
        model(
            "        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)\n"
            "        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)\n"
            "        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)\n"
            "        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)\n",
            "        q, k, v = self.c_attn(x).unflatten(2, (3, self.n_head, -1)).transpose(1, 3).unbind(2)\n",
        )
    ],
)
