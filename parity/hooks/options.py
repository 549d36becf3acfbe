"""The switches of a recorded run as environment variables: `parity.run.environment` writes, the hooks read."""

from __future__ import annotations

import json
import os
from typing import Any, FrozenSet, List, NamedTuple, Optional, Tuple

PROBES = ("batch", "loss", "grad_norm", "param_norm", "update_norm", "output")
MODES = ("checked", "timed", "profiled")
UNITS = ("auto", "optimizer", "forward")


class Options(NamedTuple):
    """What to record. `steps` and `profile` are half-open ranges [first, last)."""

    mode: str
    probes: FrozenSet[str]
    steps: Optional[Tuple[int, Optional[int]]]
    seed: Optional[int]
    deterministic: bool
    perturb: Optional[str]
    perturb_seed: int
    profile: Optional[Tuple[int, int]]
    stacks: bool
    structure: bool
    modules: bool
    cover: Optional[str]
    tree: Optional[str]
    outputs: List[str]
    unit: str

    def wants(self, probe: str, step: int) -> bool:
        """Whether a probe records at a step."""
        if probe not in self.probes:
            return False
        if self.steps is None:
            return True
        first, last = self.steps
        return step >= first and (last is None or step < last)


def read() -> Options:
    """The switches of this process."""
    get = os.environ.get
    mode = get("PARITY_MODE") or "checked"
    probes = get("PARITY_PROBES")
    names = PROBES if probes is None else tuple(filter(None, probes.split(",")))
    return Options(
        mode=mode,
        probes=frozenset(names) if mode == "checked" else frozenset(),
        steps=window(get("PARITY_STEPS")),
        seed=_integer(get("PARITY_SEED")),
        deterministic=get("PARITY_DETERMINISTIC") == "1",
        perturb=get("PARITY_PERTURB") or None,
        perturb_seed=_integer(get("PARITY_PERTURB_SEED")) or 0,
        profile=_closed(window(get("PARITY_PROFILE"))),
        stacks=get("PARITY_STACKS") == "1",
        structure=get("PARITY_STRUCTURE") == "1",
        modules=get("PARITY_MODULES") == "1",
        cover=get("PARITY_COVER") or None,
        tree=get("PARITY_TREE") or None,
        outputs=list(json.loads(get("PARITY_OUTPUTS") or "[]")),
        unit=get("PARITY_UNIT") or "auto",
    )


def window(text: Optional[str]) -> Optional[Tuple[int, Optional[int]]]:
    """`"A:B"`, `"A:"`, `":B"` as a half-open range of steps. ValueError for anything else."""
    if not text:
        return None
    first, colon, last = text.partition(":")
    if not colon:
        raise ValueError("a range of steps is A:B, not %r" % text)
    start, end = int(first or 0), int(last) if last else None
    if start < 0 or (end is not None and end <= start):
        raise ValueError("a range of steps is A:B with 0 <= A < B, not %r" % text)
    return start, end


def _closed(steps: Any) -> Optional[Tuple[int, int]]:
    if steps is None:
        return None
    return steps[0], steps[1] if steps[1] is not None else steps[0] + 3


def _integer(text: Optional[str]) -> Optional[int]:
    return int(text) if text else None
