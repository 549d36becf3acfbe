"""How long the unprofiled job takes and of what that time is made: start-up, steady steps, slow steps, tail."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common.errors import InputError
from scripts.common.files import read_json
from scripts.common.timeline import marks_per_step

SLOW = 1.3  # times the median step; an evaluation of a third of a step is the smallest that marks can show

LONGEST = 3000  # steps in which a period is looked for, which takes 0.1 s


@dataclass
class Timing:
    """Seconds of one job, medians over `runs` runs, and the length of job that the user declared.

    Steps are those that the recorder marks; `marks_per_step` of them are one of the steps that the user declares, which
    may be requests of many calls.

    `startup_s` ends one median step before the first step mark, so that it holds imports, set-up and the warm-up of the
    first step; `excess_s` is what slow steps take above the median, summed over the run; `tail_s` follows the last
    mark.
    """

    runs: int
    wall_s: float
    startup_s: float
    step_s: float
    excess_s: float
    tail_s: float
    steps: int
    horizon_steps: int
    cpu_s: float | None = None
    durations_s: list[float] = field(default_factory=list)
    slow: list[int] = field(default_factory=list)
    period: int | None = None
    source: str = ""
    marks_per_step: float = 1.0

    @property
    def total_s(self) -> float:
        """Wall time of the job at the declared horizon; slow steps keep their rate."""
        rate = self.excess_s / self.steps if self.steps else 0.0
        return self.startup_s + self.horizon_steps * (self.step_s + rate) + self.tail_s

    def steady_share(self) -> float:
        """Share of the job at the horizon in steady steps, slow steps counted as one median step."""
        return self.horizon_steps * self.step_s / self.total_s if self.total_s else 0.0

    def excess_share(self) -> float:
        """Share of the job at the horizon that slow steps add."""
        return self.horizon_steps * self.excess_s / self.steps / self.total_s if self.steps and self.total_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The horizon as findings.json states it."""
        return {
            "steps": self.horizon_steps,
            "marks_per_declared_step": round(self.marks_per_step, 6),
            "total_s": round(self.total_s, 6),
            "startup_s": round(self.startup_s, 6),
            "step_s": round(self.step_s, 6),
            "slow_steps_s": round(self.excess_share() * self.total_s, 6),
            "tail_s": round(self.tail_s, 6),
            "measured_steps": self.steps,
            "runs": self.runs,
            "source": self.source,
        }


def load(paths: list[str | Path], spec: dict[str, Any]) -> Timing:
    """Timing of `run.json` files and `aa.json` (whose rows lie in `aa.parquet` beside it). Raises InputError."""
    rows: list[dict[str, Any]] = []
    durations: list[list[float]] = []
    for path in map(Path, paths):
        if path.name.endswith("aa.json"):
            rows += _race_rows(path)
        else:
            document = read_json(path, "run")
            if document.get("status") != "ok":
                continue
            marks = step_durations(path.parent / "records" / "steps.jsonl")
            row = {**document, "median_step_s": statistics.median(marks) if marks else None}
            row["cpu_s"] = _sum(document.get("cpu_user_s"), document.get("cpu_system_s"))
            rows.append(row)
            durations += [marks] if marks else []
    if not rows:
        raise InputError(
            f"{', '.join(map(str, paths)) or '--runs'}: no run with status ok; the baseline has to run first"
        )
    return _timing(rows, durations, spec, str(paths[0]))


def of_trace(runtime: list[dict[str, Any]], headline: dict[str, Any]) -> Timing:
    """A trace taken for the whole job: its steps without start-up, as slow as profiling made them."""
    rank = min((r["rank"] for r in runtime), default=0)
    walls = [r["wall_ns"] / 1e9 for r in runtime if r.get("step") is not None and r["rank"] == rank]
    capture = (headline.get("capture_ns") or 0) / 1e9
    if not walls:
        return Timing(0, capture, 0.0, capture, 0.0, 0.0, 1, 1, source="the trace itself")
    step = statistics.median(walls)
    excess = max(0.0, sum(walls) - step * len(walls))
    slow = [i for i, wall in enumerate(walls) if i and wall > SLOW * step]
    return Timing(
        0, sum(walls), 0.0, step, excess, 0.0, len(walls), len(walls), None, walls, slow, None, "the trace itself"
    )


def _timing(rows: list[dict[str, Any]], durations: list[list[float]], spec: dict[str, Any], source: str) -> Timing:
    def middle(key: str) -> float | None:
        values = [row[key] for row in rows if row.get(key) is not None]
        return statistics.median(values) if values else None

    wall, steps = middle("wall_s") or 0.0, int(middle("steps") or 0)
    first, last = middle("first_step_s"), middle("last_step_s")
    marks = durations[0] if durations else []
    step = middle("median_step_s")
    if first is None or last is None or steps < 2:  # no marks: the whole job is one step
        count = max(1, steps)
        return Timing(
            len(rows),
            wall,
            0.0,
            wall / count,
            0.0,
            0.0,
            count,
            _horizon(spec, count),
            middle("cpu_s"),
            source=source,
            marks_per_step=marks_per_step(spec.get("measure") or {}, count),
        )
    step = step if step else (last - first) / (steps - 1)
    excess = max(0.0, (last - first) - step * (steps - 1))
    slow, period = slow_steps(marks, step)
    return Timing(
        len(rows),
        wall,
        max(0.0, first - step),
        step,
        excess,
        max(0.0, wall - last),
        steps,
        _horizon(spec, steps),
        middle("cpu_s"),
        marks,
        slow,
        period,
        source,
        marks_per_step(spec.get("measure") or {}, steps),
    )


def slow_steps(marks: list[float], step: float) -> tuple[list[int], int | None]:
    """Slow steps and their period: the period whose steps are all slow and hold most of the excess, else all slow
    steps.

    The first step (warm-up) does not count. Cost: steps x slow steps. A
    disturbed machine makes single steps slow; those of a period stay
    apart from them.
    """
    excess = {i: max(0.0, value - step) for i, value in enumerate(marks) if i}
    slow = [i for i, value in excess.items() if value > (SLOW - 1) * step]
    total = sum(excess[i] for i in slow)
    best: tuple[float, int, list[int]] | None = None
    if len(slow) * 5 > len(marks) or len(marks) > LONGEST:  # noise, or steps too many and too short to tell
        return slow, None
    members_of = set(slow)
    for period in range(2, len(marks) // 2 + 1):
        for offset in (i for i in slow if i <= period):  # the first of its members, so that few offsets are tried
            members = range(offset, len(marks), period)
            if len(members) >= 2 and all(i in members_of for i in members):
                # what the members hold beyond what as many steps taken at random would
                score = sum(excess[i] for i in members) - len(members) * total / max(1, len(marks) - 1)
                if best is None or score > best[0] * 1.02:
                    best = (score, period, list(members))
    if best is None or sum(excess[i] for i in best[2]) < 0.6 * total:
        return slow, None
    return best[2], best[1]


def step_durations(path: Path) -> list[float]:
    """Seconds between step marks, the first from the first mark's own begin; [] where the file is missing."""
    if not path.is_file():
        return []
    marks = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a torn last line
        if "step" in record and record.get("end_ns") is not None:
            marks.append((record.get("begin_ns"), record["end_ns"]))
    ends = [end for _, end in marks]
    first = [(marks[0][1] - marks[0][0]) / 1e9] if marks and marks[0][0] is not None else []
    return first + [(b - a) / 1e9 for a, b in zip(ends, ends[1:], strict=False)]


def _race_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    table = path.with_suffix(".parquet")
    if not table.is_file():
        raise InputError(f"{table}: no such file; it lies beside {path.name} when rule aa has run")
    return [row for row in pq.read_table(table).to_pylist() if row.get("status") == "ok" and not row.get("cold")]


def _horizon(spec: dict[str, Any], measured: int) -> int:
    """The declared length of the job in steps as the recorder marks them."""
    horizon = (spec.get("measure") or {}).get("horizon")
    steps = horizon.get("steps") if isinstance(horizon, dict) else horizon
    return round(steps * marks_per_step(spec.get("measure") or {}, measured)) if steps else measured


def _sum(*values: float | None) -> float | None:
    return None if any(v is None for v in values) else sum(v for v in values if v is not None)
