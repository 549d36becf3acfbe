"""Nobody overspends a shared budget: not alone, not with sixteen processes at once, not by dying in the middle."""

import json
import multiprocessing
from pathlib import Path

import pytest

from scripts.common.errors import InputError
from scripts.propose.llm.budget import BudgetError, Ledger

CALL = {"dollars": 0.1, "tokens": 100, "calls": 1, "seconds": 1.0}


def spend(path: str, gate: object, results: object) -> None:
    """One process: reserve, settle at less than reserved, until the budget says no."""
    ledger = Ledger(Path(path), {"task": {"dollars": 2.0, "calls": 1000}, "sweep": {"tokens": 1500}})
    gate.wait()  # type: ignore[attr-defined]
    done = 0
    while True:
        try:
            reservation = ledger.reserve(CALL)
        except BudgetError:
            break
        ledger.settle(reservation, CALL)
        done += 1
    results.put(done)  # type: ignore[attr-defined]


def test_sixteen_processes_cannot_overspend_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(16), context.Queue()
    processes = [context.Process(target=spend, args=(str(tmp_path / "ledger.json"), gate, results)) for _ in range(16)]
    for process in processes:
        process.start()
    done = sum(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert done == 15  # 1500 tokens of the sweep, before 20 calls of the task's dollars
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert ledger["reserved"] == {} and ledger["spent"]["sweep"]["tokens"] == 1500
    assert ledger["spent"]["task"]["dollars"] == pytest.approx(1.5)


def test_the_worst_case_is_held_while_a_call_is_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.json", {"task": {"tokens": 150}})
    out = ledger.reserve(CALL)
    with pytest.raises(
        BudgetError, match=r"budget: task: tokens: 100 of 150 are used or reserved, the next call may take 100"
    ):
        ledger.reserve(CALL)
    ledger.settle(out, {**CALL, "tokens": 20})
    ledger.reserve(CALL)  # 20 spent and 100 reserved


def test_a_missing_usage_charges_the_reservation(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.json", {"task": {"tokens": 150}})
    ledger.settle(ledger.reserve(CALL), None)
    assert ledger.used("task")["tokens"] == 100
    assert json.loads((tmp_path / "l.json").read_text())["spent"]["task"]["unmetered_calls"] == 1


def test_a_job_that_died_stays_charged(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.json", {"task": {}}).reserve(CALL)
    again = Ledger(tmp_path / "l.json", {"task": {"calls": 1}})
    assert again.used("task")["calls"] == 1
    with pytest.raises(BudgetError, match="calls"):
        again.reserve(CALL)


def test_an_unknown_price_is_counted_as_unknown_and_other_limits_hold(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.json", {"task": {"dollars": 0.01, "calls": 1}})
    ledger.settle(ledger.reserve({**CALL, "dollars": None}), {**CALL, "dollars": None})
    assert json.loads((tmp_path / "l.json").read_text())["spent"]["task"]["unpriced_calls"] == 1
    with pytest.raises(BudgetError, match="calls"):
        ledger.reserve({**CALL, "dollars": None})


def test_a_spoilt_ledger_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text("{")
    with pytest.raises(InputError, match="repair it or move it away"):
        Ledger(tmp_path / "l.json", {}).reserve(CALL)
    (tmp_path / "l.json").unlink()
    Ledger(tmp_path / "l.json", {}).reserve(CALL)  # the lock was given back
