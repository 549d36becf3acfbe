"""One measuring session: blocks of fresh processes in random order on a machine that is held for it.

Every finished run goes into a journal beside the output, so that a kill in the middle loses one block at most: a rerun
takes up the whole blocks and goes on. The table is written once, at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common import machine, tree
from scripts.common.errors import InputError
from scripts.common.files import canonical_json, replacing, sha256_bytes
from scripts.common.launch import Job, last_lines, launch
from scripts.judge import outputs

BASE = "baseline"  # the arm that the others are compared with
IDLE_LIMIT_S = 15.0  # for one run
# For a session: on a machine that is never idle, waiting does not help. The variable is there for tests.
IDLE_BUDGET_S = float(os.environ.get("WHOLEJOB_IDLE_WAIT_S", "60"))
JOURNAL_AGE_S = 3600.0
BUSY_CORES = 0.25
COLUMNS = {
    "session": "string",
    "stage": "string",
    "block": "int32",
    "position": "int32",
    "arm": "string",
    "tree": "string",
    "seed": "int64",
    "cold": "bool_",
    "started_ns": "int64",
    "wall_s": "float64",
    "cpu_s": "float64",
    "first_step_s": "float64",
    "median_step_s": "float64",
    "last_step_s": "float64",
    "steps": "int64",
    "startup_s": "float64",
    "warmup_s": "float64",
    "steady_s": "float64",
    "slow_s": "float64",
    "tail_s": "float64",
    "periodic_every": "int64",
    "periodic_extra_s": "float64",
    "peak_rss_bytes": "int64",
    "peak_device_bytes": "int64",
    "status": "string",
    "reason": "string",
    "load": "float64",
    "idle": "bool_",
    "clocks": "string",
    "final_loss": "float64",
    "outputs_hash": "string",
}
"""Columns of `race.parquet` and its kin, with their Arrow types. One row a run; `cold` runs enter no estimate."""

Row = dict[str, Any]


@dataclass
class Session:
    """Runs of the arms `{name: tree hash}`; `output` is the table, its journal and scratch folder lie beside it."""

    spec: dict[str, Any]
    env: dict[str, Any]
    arms: dict[str, str]
    stage: str
    output: Path
    rows: list[Row] = field(default_factory=list)
    keep: int = 0  # how many different outputs of each arm are kept until the session ends
    kept: dict[str, dict[str, Path]] = field(default_factory=dict)
    waited_s: float = 0.0
    said: int = 0

    @classmethod
    @contextlib.contextmanager
    def held(
        cls, spec: dict[str, Any], env: dict[str, Any], arms: dict[str, str], stage: str, output: Path, *, keep: int = 0
    ) -> Iterator[Session]:
        """A session that holds the machine; on a clean end it has written its table and removed its journal.

        keep: outputs of so many runs of each arm, those that differ, are in `kept` as `{arm: {hash: folder}}`.
        """
        with machine.exclusive():
            session = cls(spec, env, arms, stage, Path(output), keep=keep)
            session._take_up()
            try:
                yield session
            finally:
                tree.remove(session._scratch)
                tree.remove(session._outputs)
            write_rows(session.rows, session.output)
            session._journal.unlink(missing_ok=True)

    @property
    def _journal(self) -> Path:
        return self.output.with_name(f".{self.output.name}.journal")

    @property
    def _scratch(self) -> Path:
        return self.output.with_name(f".{self.output.name}.run")

    @property
    def _outputs(self) -> Path:
        return self.output.with_name(f".{self.output.name}.outputs")

    @property
    def key(self) -> str:
        """What makes two sessions the same: arms, specification, environment, stage, and the boot of this machine."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        lock = self.env.get("lock_sha256")
        return sha256_bytes(canonical_json([self.arms, self.spec, lock, self.stage, boot]))[:16]

    def block(self, number: int, names: Sequence[str], cold: bool = False) -> dict[str, Row]:
        """Run each of the arms once, in an order drawn from the session's key and the block's number.

        A block that the journal holds whole is not run again. An arm whose run fails is an answer (its `status`).
        """
        known = {row["arm"]: row for row in self.rows if row["block"] == number and row["cold"] == cold}
        if set(names) <= set(known):
            return {name: known[name] for name in names}
        order = list(names)
        random.Random(f"{self.key}/{number}/{cold}").shuffle(order)
        done = {}
        for position, name in enumerate(order):
            self._say(f"{'cold' if cold else f'block {number + 1}'}: {name}")
            row = self._run(name)
            row |= {"block": number, "position": position, "cold": cold}
            done[name] = row
            self.rows.append(row)
            self._note(row)
        return done

    def _run(self, name: str) -> Row:
        """One fresh process of an arm, with the state of the machine around it."""
        limit = min(IDLE_LIMIT_S, max(0.0, IDLE_BUDGET_S - self.waited_s))
        state = machine.wait_idle(limit, window_s=0.05)
        self.waited_s += state["waited_s"]
        job = Job(self.spec, self.env, self.arms[name], self.spec["parity"]["seed"], kind="timed")
        busy = machine.busy_ticks()
        told = launch(job, self._scratch)
        busy = machine.busy_ticks() - busy
        own_s = told["cpu_user_s"] + told["cpu_system_s"]
        row = {
            "session": self.key,
            "stage": self.stage,
            "arm": name,
            "tree": self.arms[name],
            "seed": job.seed,
            "started_ns": told["started_ns"],
            "wall_s": told["wall_s"],
            "cpu_s": own_s,
            **{key: told[key] for key in ("first_step_s", "median_step_s", "last_step_s", "steps")},
            **told["phases"],
            "periodic_every": (told["periodic"] or {}).get("every"),
            "periodic_extra_s": (told["periodic"] or {}).get("extra_s"),
            "peak_rss_bytes": told["peak_rss_bytes"],
            "peak_device_bytes": told["peak_device_bytes"],
            "status": told["status"],
            "reason": told["reason"],
            "load": round(max(0.0, busy - own_s) / told["wall_s"], 3),
            "idle": state["idle"],
            "clocks": machine.clocks(),
            "final_loss": told["final_loss"],
            "outputs_hash": outputs.digest(told),
        }
        kept = self.kept.setdefault(name, {})
        if told["status"] == "ok" and told["outputs"] and row["outputs_hash"] not in kept and len(kept) < self.keep:
            kept[row["outputs_hash"]] = self._outputs / f"{name}-{len(kept)}"
            self._outputs.mkdir(exist_ok=True)
            (self._scratch / "out").rename(kept[row["outputs_hash"]])
        if told["status"] != "ok":
            row["reason"] = f"{told['reason']} (timed run)"
            print(last_lines(self._scratch / "job.log"), flush=True)
        return row

    def _take_up(self) -> None:
        """Rows of an interrupted session of the same key that is not older than an hour."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        tree.remove(self._scratch)
        tree.remove(self._outputs)
        self.output.unlink(missing_ok=True)
        rows = []
        with contextlib.suppress(OSError, ValueError):
            if time.time() - self._journal.stat().st_mtime < JOURNAL_AGE_S:
                for line in self._journal.read_text(encoding="utf-8").splitlines():
                    rows.append(json.loads(line))  # noqa: PERF401 - what a torn last line leaves before it is kept
        rows = [row for row in rows if row["session"] == self.key]
        torn = max((row["block"] for row in rows if not row["cold"]), default=None)
        # The last block may lack an arm, and the machine has cooled down since: cold runs are made again.
        self.rows = [row for row in rows if not row["cold"] and row["block"] != torn]
        self._journal.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")
        if self.rows:
            print(f"taking up {len(self.rows)} runs of an interrupted session", flush=True)

    def _note(self, row: Row) -> None:
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _say(self, what: str) -> None:
        self.said += 1
        print(f"{self.stage} {what}", flush=True)

    def state(self) -> dict[str, Any]:
        """How quiet the machine was: `{"runs", "busy", "waited_s"}`; `busy` counts runs that others disturbed."""
        disturbed = sum(1 for row in self.rows if not row["idle"] or row["load"] > BUSY_CORES)
        return {"runs": len(self.rows), "busy": disturbed, "waited_s": round(self.waited_s, 1)}


def require_ok(rows: dict[str, Row], arm: str, name: str) -> None:
    """Raise InputError where the arm that everything is compared with failed: then nothing can be measured."""
    row = rows[arm]
    if row["status"] != "ok":
        raise InputError(f"workload {name}: the arm {arm!r}, which ran before, now fails: {row['reason']}")


def write_rows(rows: list[Row], path: Path) -> None:
    """The rows as Parquet, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], schema=schema)
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table that `write_rows` wrote."""
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()
