"""Generation without a cache, padding that is computed on, batches of one."""

from __future__ import annotations

import json
import math
from collections import Counter

from scripts.diagnose.job import Finding, Job, NotApplicable, Row, anchor, evidence
from scripts.diagnose.timeline import OPERATOR, Timeline

LOOKED_FOR = ("kv_cache_missed", "padding_waste", "batch_too_small")
PRODUCTS = ("aten::addmm", "aten::mm", "aten::linear", "aten::bmm", "aten::matmul")


def detect(job: Job) -> list[Finding]:
    """From the shapes that the model's matrix products had, and the source that chose them."""
    if job.timeline is None:
        raise NotApplicable("the profiled run has no operators")
    return [*cache_missed(job), *padding(job), *batch(job)]


def _model_calls(timeline: Timeline) -> list[int]:
    """Outermost module calls of the window."""
    return timeline.outermost(timeline.named("nn.Module:"))


def _tokens(timeline: Timeline, call: int) -> tuple[int, int] | None:
    """(batch, length) that a module call works on: the widest leading sizes of its first embedding or linear
    operator."""
    for i in timeline.under(call):
        dims = timeline.dims[i]
        if timeline.name[i] not in ("aten::embedding", "aten::linear") or not dims:
            continue
        try:
            shapes = json.loads(dims)
        except ValueError:
            continue
        shape = shapes[1] if timeline.name[i] == "aten::embedding" else shapes[0]
        if isinstance(shape, list) and len(shape) >= 2 and all(isinstance(n, int) for n in shape):
            return (shape[0], shape[1])
    return None


def _work_ns(timeline: Timeline, call: int) -> float:
    """Time in leaf operators under a call: what shrinks with the number of tokens."""
    return float(sum(timeline.own_ns[i] for i in timeline.under(call) if timeline.kind[i] == OPERATOR))


def cache_missed(job: Job) -> list[Finding]:
    """Successive calls of the model whose length grows by one: all but the first need one token each."""
    timeline = job.timeline
    assert timeline is not None
    if job.training:  # lengths of batches may follow each other by chance
        return []
    calls = [(i, _tokens(timeline, i)) for i in _model_calls(timeline)]
    grown, gone, before = 0, 0.0, None
    products = 0.0
    for call, size in calls:
        if size and before and size[0] == before[0] and size[1] == before[1] + 1 and size[1] > 2:
            grown += 1
            # the cost of dispatching the same operators stays; what grows with the tokens goes
            work = _work_ns(timeline, call)
            stays = min(work, _operators(timeline, call) * 4_000.0 * timeline.scale)
            products += work
            gone += max(0.0, (work - stays) * (1 - 1 / size[1]))
        before = size
    sites = [s for s in job.sites("generate") if s["detail"]["use_cache"] is False] + job.sites("cache_off")
    sites += [s for s in job.sites("decode_loop") if not s["detail"]["cached"]]
    if not grown:
        return []
    lengths = [size[1] for _, size in calls if size]
    return [
        Finding(
            "kv_cache_missed",
            f"Generation computes the whole prefix again for every token ({grown} calls in the window)",
            "Without a key-value cache each new token pays for all tokens before it; with one it pays for itself.",
            job.share(gone),
            f"operators in {grown} calls whose length grew by one: {job.per_step_s(products) * 1e3:.2f} ms a step, of "
            "which one token's part "
            f"and 4 us an operator stay: {job.wall_note(gone)}",
            "high" if sites else "medium",
            ["python", "config"],
            [anchor(s) for s in sites] or _callers(job),
            [
                evidence(
                    "calls that repeat the prefix", grown, "in the window", "events: input shapes of successive calls"
                ),
                evidence("longest", max(lengths), "tokens", "events"),
            ],
        )
    ]


def _operators(timeline: Timeline, call: int) -> int:
    return sum(1 for i in timeline.under(call) if timeline.kind[i] == OPERATOR and timeline.below[i] == 0)


def _callers(job: Job) -> list[dict[str, object]]:
    """The functions of the job that call the model."""
    timeline = job.timeline
    assert timeline is not None
    owners = Counter(int(timeline.owner[timeline.parent[i]]) for i in _model_calls(timeline) if timeline.parent[i] >= 0)
    return [job.function_anchor(timeline.functions[n]) for n, _ in owners.most_common(2) if n >= 0]


def padding(job: Job) -> list[Finding]:
    """Padding to a fixed length: the padded share of the tokens, as the recorded batches or attention masks show it."""
    timeline = job.timeline
    assert timeline is not None
    sites = job.sites("padding")
    if not sites:
        return []
    share_padded, source = _padded_share(job)
    calls = _model_calls(timeline)
    work = sum(_work_ns(timeline, i) for i in calls) + job.backward([j for i in calls for j in timeline.under(i)])
    if share_padded is None:
        return [
            Finding(
                "padding_waste",
                "Batches are padded to a fixed length",
                "Padding is computed on like any token and then masked.",
                None,
                "",
                "low",
                ["python"],
                [anchor(s) for s in sites],
                [evidence("padded share", None, "", "no ledger, recorded mask or token batch shows it")],
            )
        ]
    gone = work * share_padded
    return [
        Finding(
            "padding_waste",
            f"{share_padded:.0%} of the tokens that the model computes on are padding",
            "Batches are padded to a fixed length, whatever they hold; padded to the longest of the batch (or "
            "bucketed by length, where "
            "the order of the data may change) the model does less.",
            job.share(gone, sum(_work_ns(timeline, i) for i in calls) * share_padded if job.training else 0.0),
            f"{share_padded:.0%} of {job.per_step_s(work) * 1e3:.2f} ms of operators in the model a step: "
            f"{job.wall_note(gone)}",
            "medium",
            ["python"],
            [anchor(s) for s in sites],
            [evidence("padded share", share_padded, "of tokens", source)],
        )
    ]


def _padded_share(job: Job) -> tuple[float | None, str]:
    """From the tokens that a checked run's ledger counted against the places in the batches of the window; else from a
    recorded 0/1 mask's mean, or from how much of the recorded samples of a token batch is one repeated value."""
    counted, timeline = job.records.get("counted") or {}, job.timeline
    if counted.get("tokens") and counted.get("batches") and timeline is not None:
        sizes = [size for i in _model_calls(timeline) if (size := _tokens(timeline, i))]
        places = sum(rows * length for rows, length in sizes) / len(sizes) if sizes else 0.0
        share = 1 - counted["tokens"] / counted["batches"] / places if places else 0.0
        if share > 0.01:
            return share, "ledger of a checked run: tokens a batch, over places in the batches of the window"
    records = job.records.get("batch", [])
    masks = [
        r
        for r in records
        if r.get("kind") == "tensor" and r.get("max") == 1 and (r.get("min") or 0) == 0 and r.get("abs_mean")
    ]
    if masks:
        return 1 - sum(r["abs_mean"] for r in masks) / len(masks), "records: mean of the attention mask"
    shares = []
    for record in records:
        if (
            record.get("kind") == "tensor"
            and "int" in str(record.get("dtype"))
            and len(record.get("samples") or []) >= 16
        ):
            value, count = Counter(record["samples"]).most_common(1)[0]
            shares.append(
                count / len(record["samples"]) if value in (record["samples"][-1], record.get("min")) else 0.0
            )
    if shares and max(shares) > 0.1:
        return sum(shares) / len(shares), "records: the commonest value among sampled tokens"
    return None, ""


def batch(job: Job) -> list[Finding]:
    """One sample a call: python and dispatch are paid for each; batched they are paid once."""
    timeline = job.timeline
    assert timeline is not None
    calls = _model_calls(timeline)
    sizes = [s for s in (_batch_size(timeline, i) for i in calls) if s is not None]
    if job.training or len(calls) < 2 or not sizes or Counter(sizes).most_common(1)[0][0] != 1:
        return []
    spent = timeline.total_ns(calls)
    operators = sum(_operators(timeline, i) for i in calls)
    floor = sum(_batched_ns(timeline, j) for i in calls for j in timeline.under(i))
    gone = max(0.0, spent - floor)
    loaders = [s for s in job.sites("dataloader") if s["detail"].get("batch_size") in (None, 1)]
    single = [s for s in [*job.sites("generate"), *job.sites("batch_of_one")] if s["loops"]]
    sites = [anchor(s) for s in [*single, *loaders]] or _callers(job)
    return [
        Finding(
            "batch_too_small",
            "The model is called with one sample at a time",
            "Python, dispatch and weight reads are paid for each sample; several samples in one call share them.",
            job.share(gone),
            f"{len(calls)} calls of the model less the operators' own work at 20 GFLOP/s and 10 GB/s: "
            f"{job.wall_note(gone)}",
            "medium",
            ["python"],
            sites,
            [
                evidence("calls with a batch of one", sizes.count(1), f"of {len(sizes)}", "events: input shapes"),
                evidence("operators", operators / max(1, len(calls)), "a call", "events"),
            ],
        )
    ]


def _batched_ns(timeline: Timeline, index: int) -> float:
    """The part of a leaf operator's time that each sample costs in any batch: its arithmetic and its bytes on one core.

    Convolutions and attention do not gain from a batch and count whole.
    """
    own = float(timeline.own_ns[index])
    if timeline.kind[index] != OPERATOR or timeline.below[index]:
        return 0.0
    try:
        shapes = [s for s in json.loads(timeline.dims[index] or "[]") if isinstance(s, list) and s]
        sizes = [math.prod(s) for s in shapes]
    except (ValueError, TypeError):
        return own
    name = timeline.name[index]
    if "conv" in name or "attention" in name or not sizes:
        return own
    if name in PRODUCTS:
        left, right = shapes[-2:] if len(shapes) > 1 else (shapes[0], [1])
        return min(own, 2 * math.prod(left) * right[-1] / 20.0)
    return min(own, 8 * sizes[0] / 10.0)


def _batch_size(timeline: Timeline, call: int) -> int | None:
    size = _tokens(timeline, call)
    if size is not None:
        return size[0]
    for i in timeline.under(call):
        if timeline.name[i] in ("aten::conv2d", "aten::addmm", "aten::linear") and timeline.dims[i]:
            shapes: list[Row] = json.loads(str(timeline.dims[i]))
            shape = shapes[1] if timeline.name[i] == "aten::addmm" else shapes[0]
            return int(shape[0]) if isinstance(shape, list) and shape and isinstance(shape[0], int) else None
    return None
