"""Race, screen and session: who wins, who is dropped, what an interruption costs. Times are simulated; no job runs."""

import contextlib
import json
import math

import numpy as np
import pytest

from scripts.common import machine
from scripts.common.errors import InputError
from scripts.judge import attribution, decomposition, race, screen, session
from scripts.judge.session import BASE, COLUMNS, Session, read_rows, write_rows


def simulated(speedups, noise=0.01, seed=0, fails=()):
    """A `measure` whose arms run `speedups[name]` times as fast as the baseline; counts the blocks of each arm."""
    rng = np.random.default_rng(seed)
    count = dict.fromkeys([BASE, *speedups], 0)

    def measure(block, names):
        rows = {}
        for name in names:
            count[name] += 1
            wall = 10 / speedups.get(name, 1.0) * math.exp(rng.normal(0, noise))
            failed = (name, count[name]) in fails
            rows[name] = {"wall_s": wall, "status": "crashed" if failed else "ok", "reason": "boom" if failed else None}
        return rows

    measure.count = count
    return measure


SETTINGS = {"alpha": 0.05, "min_effect": 0.02, "pairs": 16}


def test_clear_gain_is_decided_by_six_pairs_and_equality_by_no_more_than_needed():
    measure = simulated({"c0": 1.3})
    found = race.confirm(measure, ["c0"], **SETTINGS)["c0"]
    assert (found["answer"], measure.count["c0"]) == ("faster", 6)
    assert found["estimate"]["low"] < 1.3 < found["estimate"]["high"]
    same = race.confirm(simulated({"c0": 1.0}, noise=0.004), ["c0"], **SETTINGS)["c0"]
    assert same["answer"] == "no_difference"
    slow = race.confirm(simulated({"c0": 0.8}), ["c0"], **SETTINGS)["c0"]
    assert slow["answer"] == "slower"


def test_too_much_noise_is_given_up_when_more_pairs_would_hardly_decide():
    measure = simulated({"c0": 1.01}, noise=0.2)
    found = race.confirm(measure, ["c0"], **SETTINGS)["c0"]
    assert found["answer"] == "inconclusive"
    assert found["futile"] < race.FUTILE
    assert measure.count["c0"] < 16
    assert [look["pairs"] for look in found["looks"]] == [6, 10, 16][: len(found["looks"])]


def test_what_the_remaining_pairs_may_decide_is_raced_to_the_end():
    measure = simulated({"c0": 1.03}, noise=0.03, seed=3)
    found = race.confirm(measure, ["c0"], **SETTINGS)["c0"]
    assert "futile" not in found and len(found["looks"]) > 1


def test_decided_candidates_stop_and_the_baseline_is_shared():
    measure = simulated({"c0": 3.0, "c1": 1.01}, noise=0.1, seed=1)
    race.confirm(measure, ["c0", "c1"], **SETTINGS)
    assert measure.count["c0"] == 7
    assert measure.count["c1"] == measure.count[BASE] > 7


def test_candidate_that_crashes_while_timed_is_out_and_the_other_goes_on():
    measure = simulated({"c0": 1.5, "c1": 1.5}, fails={("c0", 3)})
    found = race.confirm(measure, ["c0", "c1"], **SETTINGS)
    assert (found["c0"]["status"], found["c0"]["reason"], found["c0"]["answer"]) == ("failed", "boom", None)
    assert found["c1"]["answer"] == "faster"
    assert measure.count["c0"] == 3


def test_screen_drops_what_shows_nothing_and_keeps_the_best():
    settings = {**SETTINGS, "screen_pairs": 3, "finalists": 2}
    measure = simulated({"c0": 1.0, "c1": 1.1, "c2": 1.3, "c3": 1.2, "c4": 2.0}, noise=0.002, fails={("c4", 2)})
    found, finalists = screen.screen(measure, ["c0", "c1", "c2", "c3", "c4"], settings)
    assert finalists == ["c2", "c3"]
    assert "none of 3 pairs" in found["c0"]["reason"]
    assert "others looked better" in found["c1"]["reason"]
    assert (found["c4"]["status"], found["c4"]["reason"]) == ("failed", "boom")
    assert found["c2"]["reason"] is None


def test_six_pairs_confirm_one_candidate_only():
    settings = {**SETTINGS, "pairs": 6, "screen_pairs": 3, "finalists": 3}
    _, finalists = screen.screen(simulated({"c0": 1.2, "c1": 1.3}), ["c0", "c1"], settings)
    assert finalists == ["c1"]


class Asked(list):
    """Trees that were launched; the launch number `stop` is interrupted."""

    stop = -1


@pytest.fixture
def launches(monkeypatch):
    """`Session` with a launcher that runs nothing; the list of trees that it was asked for."""
    asked = Asked()

    def launch(job, folder):
        (folder / "out").mkdir(parents=True, exist_ok=True)
        asked.append(job.tree)
        if len(asked) == asked.stop:
            raise KeyboardInterrupt
        phases = {"startup_s": 1.0, "warmup_s": 0.1, "steady_s": 2.0, "slow_s": 0.0, "tail_s": 0.1}
        return {
            "cpu_user_s": 3.0, "cpu_system_s": 0.1, "started_ns": len(asked), "wall_s": 3.0 + 0.001 * len(asked),
            "first_step_s": 1.0, "median_step_s": 0.1, "last_step_s": 2.9, "steps": 20, "phases": phases,
            "periodic": {"every": 5, "first": 4, "extra_s": 0.2},
            "peak_rss_bytes": 1000, "peak_device_bytes": None, "status": "ok", "reason": None, "final_loss": 2.5,
            "outputs": [{"path": "a", "sha256": "0"}],
        }  # fmt: skip

    monkeypatch.setattr(session, "launch", launch)
    monkeypatch.setattr(machine, "wait_idle", lambda *_, **__: {"idle": True, "waited_s": 0.0})
    monkeypatch.setattr(machine, "exclusive", contextlib.nullcontext)
    return asked


SPEC = {
    "name": "toy",
    "launch": {"command": ["python"], "warmup": 2},
    "parity": {"seed": 0},
    "measure": {**SETTINGS, "steps": 20, "horizon": {"steps": 1000}},
}
ARMS = {BASE: "t0", "c0": "t1", "c1": "t2"}


def test_interrupted_session_goes_on_where_whole_blocks_end(launches, tmp_path):
    table = tmp_path / "race.parquet"
    launches.stop = 9
    with pytest.raises(KeyboardInterrupt), Session.held(SPEC, {}, ARMS, "confirm", table) as first:
        for block in range(4):
            first.block(block, list(ARMS))
    assert not table.exists(), "no half table"
    journal = [json.loads(line) for line in (tmp_path / ".race.parquet.journal").read_text().splitlines()]
    assert len(journal) == 8
    launches.stop = -1
    launches.clear()
    with Session.held(SPEC, {}, ARMS, "confirm", table) as second:
        for block in range(4):
            second.block(block, list(ARMS))
    # Blocks 0 and 1 were whole; block 2 lacked an arm and is run again.
    assert len(launches) == 6
    rows = read_rows(table)
    assert [sorted(row["arm"] for row in rows if row["block"] == block) for block in range(4)] == [sorted(ARMS)] * 4
    assert not list(tmp_path.glob(".race*"))


def test_journal_of_another_specification_is_not_taken_up(launches, tmp_path):
    table = tmp_path / "race.parquet"
    journal = tmp_path / ".race.parquet.journal"
    journal.write_text(json.dumps({"session": "other", "block": 0, "cold": False, "arm": BASE}) + "\n{torn")
    with Session.held(SPEC, {}, ARMS, "confirm", table) as found:
        assert found.rows == []


def test_order_within_blocks_is_random_and_the_same_when_repeated(launches, tmp_path):
    orders = []
    for name in ("a", "b"):
        with Session.held(SPEC, {}, ARMS, "confirm", tmp_path / f"{name}.parquet") as found:
            for block in range(12):
                found.block(block, list(ARMS))
        rows = read_rows(tmp_path / f"{name}.parquet")
        orders.append([row["arm"] for row in rows])
    assert orders[0] == orders[1]
    firsts = {row["arm"] for row in rows if row["position"] == 0}
    assert firsts == set(ARMS)


def test_baseline_that_fails_ends_the_race_with_one_line():
    with pytest.raises(InputError, match=r"toy: the arm .baseline.*now fails: exit code 1"):
        session.require_ok({BASE: {"status": "crashed", "reason": "exit code 1"}}, BASE, "toy")


def test_table_has_every_column_also_without_rows(tmp_path):
    write_rows([], tmp_path / "race.parquet")
    import pyarrow.parquet as pq

    assert pq.read_schema(tmp_path / "race.parquet").names == list(COLUMNS)


def row(wall, startup, rate, steps=100):
    return {
        "wall_s": wall, "cpu_s": wall, "steps": steps, "median_step_s": rate, "startup_s": startup, "warmup_s": 0.0,
        "steady_s": rate * steps, "slow_s": 0.0, "tail_s": wall - startup - rate * steps, "peak_rss_bytes": 1000,
        "peak_device_bytes": None, "periodic_every": None, "periodic_extra_s": None,
    }  # fmt: skip


def test_compile_like_change_pays_only_at_the_horizon():
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(10):
        e = rng.normal(0, 0.01, 2)
        pairs.append((row(12 + e[0], 2 + e[0], 0.1), row(27 + e[1], 22 + e[1], 0.05)))
    found = decomposition.describe(pairs, alpha=0.05, horizon=10_000, warmup=2)
    assert found["wall_s"]["candidate"] > found["wall_s"]["baseline"]
    assert found["horizon"]["ratio"] == pytest.approx((2 + 1000) / (22 + 500), rel=0.01)
    assert found["horizon"]["projected"] is True
    assert found["breakeven"]["low"] <= found["breakeven"]["steps"] <= found["breakeven"]["high"]
    assert found["breakeven"]["steps"] == pytest.approx(400, rel=0.02)
    assert found["memory"]["host"]["ratio"] == 1
    assert found["memory"]["device"]["ratio"] is None


def test_job_without_step_marks_has_a_headline_and_nothing_made_up():
    bare = dict.fromkeys(row(1, 0, 0)) | {"wall_s": 10.0, "cpu_s": 9.0, "steps": 0, "peak_rss_bytes": 5}
    found = decomposition.describe([(bare, bare)] * 6, alpha=0.05, horizon=100, warmup=2)
    assert found["horizon"] is None and found["breakeven"] is None
    assert found["decomposition"]["startup"] == {"baseline": None, "candidate": None}


def test_no_more_candidates_than_places_are_confirmed_without_a_screen(tmp_path, monkeypatch):
    def write(path, kind, document):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schema": f"wholejob/{kind}@1", **document}))

    monkeypatch.setattr("scripts.common.files._validator", lambda kind: None)
    monkeypatch.setattr(Session, "held", None)  # any attempt to measure is an error
    settings = {**SPEC, "measure": {**SPEC["measure"], "finalists": 2, "screen_pairs": 3}}
    write(tmp_path / "spec.json", "spec", settings)
    write(tmp_path / "env.json", "env", {})
    write(tmp_path / "source.json", "source", {"tree": "t0"})
    fates = [
        ("pass", "t1", "equivalent"),
        ("pass", "t1", "equivalent"),
        ("refused", None, "not_run"),
        ("pass", "t2", "different"),
    ]
    for number, (status, tree, answer) in enumerate(fates):
        write(tmp_path / f"c{number}" / "guard.json", "guard", {"status": status, "tree": tree})
        write(tmp_path / f"c{number}" / "parity.json", "parity", {"answer": answer})
    words = [word for kind in ("spec", "env", "source") for word in (f"--{kind}", str(tmp_path / f"{kind}.json"))]
    folders = [str(tmp_path / f"c{number}") for number in range(len(fates))]
    assert screen.main([*words, "--candidates", *folders, "-o", str(tmp_path / "screen.json")]) == 0
    found = json.loads((tmp_path / "screen.json").read_text())
    assert found["finalists"] == ["c0"]
    reasons = {name: arm["reason"] for name, arm in found["arms"].items()}
    assert reasons == {"c0": None, "c1": "the same tree as c0", "c2": "guard: refused", "c3": "parity: different"}
    assert read_rows(tmp_path / "screen.parquet") == []


def test_composition_runs_beside_both_finalists_until_the_first_look_and_gets_no_answer(launches, tmp_path):
    table = tmp_path / "race.parquet"
    finalists = {"c0": "t1", "c1": "t2"}
    found = race.race(SPEC, {}, finalists, table, base="t0", stage="confirm", together="t12")
    assert set(found["arms"]) == set(finalists)
    rows = read_rows(table)
    first = found["plan"][0]
    assert sum(row["tree"] == "t12" and not row["cold"] for row in rows) == first
    taken = attribution.raced(
        rows, "t0", {"full": "t12", "alone0": "t1", "without0": "t2", "alone1": "t2", "without1": "t1"}
    )
    assert [len(taken[arm]) for arm in (BASE, "full", "alone0", "without0")] == [first] * 4
    assert [row["block"] for row in taken["full"]] == [row["block"] for row in taken[BASE]] == list(range(first))
    assert {row["tree"] for row in taken["without1"]} == {"t1"}


def test_session_that_lacks_a_tree_or_blocks_is_not_taken_for_attribution(launches, tmp_path):
    table = tmp_path / "race.parquet"
    race.race(SPEC, {}, {"c0": "t1", "c1": "t2"}, table, base="t0", stage="confirm")
    rows = read_rows(table)
    assert attribution.raced(rows, "t0", {"full": "t12", "alone0": "t1"}) == {}
    assert attribution.raced(rows, "other", {"full": "t1", "alone0": "t1"}) == {}
    assert attribution.raced([r for r in rows if r["block"] < 5], "t0", {"full": "t1"}) == {}


def test_horizon_counts_what_the_contract_counts_and_not_the_calls_that_are_marked():
    rows = [{"arm": BASE, "steps": 80}, {"arm": "c0", "steps": 80}]
    assert race.horizon({"steps": 4, "horizon": {"steps": 200}}, rows) == 4000  # 20 marked calls a request
    assert race.horizon({"steps": 80}, rows) == 80
    assert race.horizon({"steps": 4}, [{"arm": BASE, "steps": 0}]) is None


def test_outputs_of_timed_runs_are_held_against_the_checked_run(launches, tmp_path, monkeypatch):
    """The launcher's job writes what its tree says; the checked run of `t1` wrote something else."""
    plain = session.launch

    def launch(job, folder):
        told = plain(job, folder)
        text = json.dumps({"loss": 2.0 if job.tree == "t0" else 3.0})
        (folder / "out").mkdir(parents=True, exist_ok=True)
        (folder / "out" / "a").with_suffix(".json").write_text(text)
        return {**told, "outputs": [{"path": "a.json", "sha256": text}]}

    monkeypatch.setattr(session, "launch", launch)
    monkeypatch.setattr("scripts.common.files._validator", lambda kind: None)

    def checked(name, loss):
        text = json.dumps({"loss": loss})
        folder = tmp_path / name
        (folder / "out").mkdir(parents=True)
        (folder / "out" / "a.json").write_text(text)
        run = {"schema": "wholejob/run@1", "outputs": [{"path": "a.json", "sha256": text}]}
        (folder / "run.json").write_text(json.dumps(run))
        return folder

    folders = {BASE: checked("base", 2.0), "c0": checked("liar", 2.0), "c1": checked("honest", 3.000001)}
    table = tmp_path / "race.parquet"
    arms = {"c0": "t1", "c1": "t2"}
    spread = [folders[BASE] / "out"]
    found = race.race(SPEC, {}, arms, table, base="t0", stage="confirm", checked=folders, spread=spread)
    assert found["base"]["outputs"]["differing"] == []
    assert found["arms"]["c0"]["observed"]["outputs"]["differing"][0]["path"] == "a.json"
    assert found["arms"]["c1"]["observed"]["outputs"]["differing"] == []
    assert not list(tmp_path.glob(".race*")), "kept outputs are removed"
