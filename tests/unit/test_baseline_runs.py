"""Baseline rules on real processes: clear lines for jobs that cannot be measured, and a race that survives kill -9."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from scripts.baseline import aa, baseline_run
from scripts.common import tree
from scripts.common.errors import InputError
from scripts.common.files import read_json
from scripts.judge import session

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workload(tmp_path, monkeypatch):
    """`workload(source)`: paths of spec, source and env of a one-file job, in a store of its own."""
    monkeypatch.setattr(tree, "STORE", tmp_path / "trees")
    # A lock of its own and no waiting: these tests look at files, not at times.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, "IDLE_BUDGET_S", 0.0)

    def make(source, **launch):
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        (folder / "job.py").write_text(textwrap.dedent(source))
        command = ["python", "job.py", "--seed", "{seed}", "--out", "{out}"]
        documents = {
            "spec": {
                "name": "toy",
                "launch": {"command": command, "timeout_s": 20, "outputs": [], "warmup": 1, **launch},
                "source": {"editable": ["*.py"], "protected": []},
                "measure": {"steps": 3, "aa_pairs": 6, "alpha": 0.05, "min_effect": 0.02, "pairs": 6},
                "parity": {"seed": 0, "probes": ["loss"]},
            },
            "source": {"tree": tree.store(folder), "origin": {}, "files": {}},
            "env": {"python": sys.executable, "kind": "current", "lock_sha256": "0"},
        }
        paths = {}
        for kind, document in documents.items():
            paths[kind] = tmp_path / f"{kind}.json"
            paths[kind].write_text(json.dumps({"schema": f"wholejob/{kind}@1", **document}))
        return paths

    return make


def arguments(paths, output):
    return [word for kind in ("spec", "source", "env") for word in (f"--{kind}", str(paths[kind]))] + [
        "-o",
        str(output),
    ]


@pytest.mark.parametrize(
    ("source", "launch", "line"),
    [
        ("raise RuntimeError('at step 3')", {}, "exit code 1: RuntimeError: at step 3"),
        ("import time; print('loading', flush=True); time.sleep(60)", {"timeout_s": 5}, "did not end within 5 s"),
        ("print('done')", {}, "no step marks"),
        ("pass", {"command": ["nosuchprogram"]}, "no program 'nosuchprogram'"),
        ("pass", {"outputs": ["model.pt"]}, "without writing model.pt"),
        ("pass", {"workdir": "sub"}, "no folder 'sub'"),
    ],
)
def test_job_that_cannot_be_measured_gets_one_line_and_no_file(workload, capsys, source, launch, line):
    output = Path(tempfile.gettempdir()) / "checked" / "seed0-repeat0" / "run.json"
    with pytest.raises(InputError) as raised:
        baseline_run.main(arguments(workload(source, **launch), output))
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not output.exists()
    if "loading" in source:
        assert "loading" in capsys.readouterr().err


def test_run_names_are_checked(workload, tmp_path):
    with pytest.raises(InputError, match="seed<seed>-repeat<i>"):
        baseline_run.main(arguments(workload("pass"), tmp_path / "first" / "run.json"))


QUICK = "import time; time.sleep(0.05)"


def test_same_job_against_itself(workload, tmp_path):
    output = tmp_path / "timing" / "aa.json"
    assert aa.main(arguments(workload(QUICK), output)) == 0
    found = read_json(output, "aa")
    assert found["pairs"] == 6
    assert found["estimate"]["low"] < found["estimate"]["ratio"] < found["estimate"]["high"]
    import pyarrow.parquet as pq

    table = pq.read_table(output.with_suffix(".parquet"))
    assert table.num_rows == 13
    assert set(table["arm"].to_pylist()) == {"baseline", "again"}


def test_kill_in_the_middle_leaves_no_half_file_and_no_orphan_and_the_rerun_completes(workload, tmp_path):
    paths = workload(QUICK + "; open('/proc/self/comm', 'w').write('wj-toy')")
    output = tmp_path / "timing" / "aa.json"
    words = arguments(paths, output)
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\nfrom scripts.common import tree\nfrom scripts.baseline import aa\n"
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from scripts.judge import session; session.IDLE_BUDGET_S = 0.0\n"
        f"tree.STORE = Path({str(tree.STORE)!r})\nsys.exit(aa.main({words!r}))\n"
    )
    journal = output.with_name(".aa.parquet.journal")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (journal.exists() and journal.read_text().count("\n") >= 6):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = journal.read_text().count("\n")
    assert not output.exists() and not output.with_suffix(".parquet").exists()
    assert 6 <= before < 13
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "taking up" in done.stdout
    assert read_json(output, "aa")["pairs"] == 6
    assert not journal.exists() and not list(output.parent.glob(".aa*"))
    assert "wj-toy" not in {path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()}
