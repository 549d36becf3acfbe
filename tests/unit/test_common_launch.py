"""The launcher: what a job sees, what is measured from outside, and that nothing of a job outlives its run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from scripts.common import launch as launching
from scripts.common import tree
from scripts.common.errors import InputError
from scripts.common.launch import Job, launch, run_json
from scripts.common.timeline import periodic, timeline

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(source, **fields of the specification)`: a job of one file, `job.py`, in a store of its own."""
    monkeypatch.setattr(tree, "STORE", tmp_path / "trees")
    monkeypatch.setattr(launching, "LINGER_S", 0.5)
    monkeypatch.setattr(launching, "GRACE_S", 0.5)

    def make(source, protected=(), files=None, **launch_fields):
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        (folder / "job.py").write_text(textwrap.dedent(source))
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        spec = {
            "name": "toy",
            "launch": {"command": ["python", "job.py", "{seed}", "{out}"], "timeout_s": 20, **launch_fields},
            "source": {"editable": ["*.py"], "protected": list(protected)},
            "measure": {"steps": 3},
            "resources": {"memory_gb": launch_fields.pop("memory_gb", None)},
        }
        return Job(spec=spec, env={"python": sys.executable}, tree=tree.store(folder), seed=5)

    return make


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, within_s: float = 8) -> bool:
    """Wait for the end of a process."""
    limit = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    return not alive(pid)


def test_job_sees_its_seed_its_folders_and_nothing_of_the_caller(job, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("WANDB_TOKEN", "secret")
    told = launch(
        job("""
            import json, os, pathlib, sys
            seed, out = sys.argv[1:]
            seen = {"seed": seed, "env": dict(os.environ), "cwd": os.getcwd()}
            pathlib.Path(out, "seen.json").write_text(json.dumps(seen))
            """, outputs=["*.json"]),
        tmp_path / "run",
    )  # fmt: skip
    seen = json.loads((tmp_path / "run" / "out" / "seen.json").read_text())
    assert told["status"] == "ok", told["reason"]
    assert seen["seed"] == "5"
    assert not [name for name in seen["env"] if name.endswith(("_KEY", "_TOKEN"))]
    assert not Path(seen["env"]["HOME"]).exists()  # fresh, and deleted after the run
    assert seen["cwd"] != str(tmp_path / "source")
    assert told["outputs"][0]["path"] == "seen.json"
    assert told["command"] == ["{python}", "job.py", "5", "{out}"]
    assert "secret" not in json.dumps(told)


def test_wall_time_counts_work_that_outlives_the_main_process(job, tmp_path):
    told = launch(
        job("""
            import os, time
            if os.fork() == 0:
                os.setsid()
                time.sleep(0.4)
            """),
        tmp_path / "run",
    )
    assert told["status"] == "ok"
    assert told["wall_s"] > 0.4
    assert "outlived" in told["warnings"][0]


def test_daemon_left_behind_is_found_and_ended(job, tmp_path):
    told = launch(
        job("""
            import os, pathlib, sys, time
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                pathlib.Path(sys.argv[2], "pid").write_text(str(os.getpid()))
                time.sleep(600)
            time.sleep(0.3)
            """),
        tmp_path / "run",
    )
    assert told["status"] == "contained"
    assert "left 1 process" in told["reason"]
    assert not alive(int((tmp_path / "run" / "out" / "pid").read_text()))


def test_job_that_ignores_term_is_killed_with_its_children(job, tmp_path):
    start = time.monotonic()
    told = launch(
        job("""
            import os, pathlib, signal, sys, time
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            child = os.fork()
            if child:
                pathlib.Path(sys.argv[2], "pids").write_text(f"{os.getpid()} {child}")
            print("still here", flush=True)
            time.sleep(600)
            """, timeout_s=5),
        tmp_path / "run",
    )  # fmt: skip
    assert told["status"] == "timeout"
    assert "5 s" in told["reason"]
    assert time.monotonic() - start < 60
    assert not any(alive(int(pid)) for pid in (tmp_path / "run" / "out" / "pids").read_text().split())
    assert "still here" in (tmp_path / "run" / "job.log").read_text()


def test_log_of_a_flood_keeps_begin_and_end(job, tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "LOG_BYTES", 1 << 16)
    told = launch(
        job(
            """
            import sys
            print("first line")
            for _ in range(1024):
                sys.stdout.write("x" * (1 << 20))
            print()
            print("last line")
            """,
            timeout_s=300,
        ),
        tmp_path / "run",
    )
    text = (tmp_path / "run" / "job.log").read_bytes()
    assert told["status"] == "ok"
    assert text.startswith(b"first line") and text.endswith(b"last line\n")
    assert b"bytes of output left out" in text
    assert len(text) < 1 << 18
    assert any("left out" in warning for warning in told["warnings"])


def test_job_over_its_memory_limit_is_ended(job, tmp_path):
    told = launch(
        job("""
            import time
            hoard = []
            while True:
                hoard.append(bytearray(b"x" * 20_000_000))
                time.sleep(0.01)
            """, memory_gb=0.3),
        tmp_path / "run",
    )  # fmt: skip
    assert told["status"] == "crashed"
    assert "resources.memory_gb" in told["reason"]


def test_crash_without_program_and_missing_output_each_say_so(job, tmp_path):
    crashed = launch(job("raise RuntimeError('at step 3')"), tmp_path / "a")
    assert (crashed["status"], crashed["exit_code"]) == ("crashed", 1)
    assert "at step 3" in launching.last_lines(tmp_path / "a" / "job.log")
    killed = launch(job("import os; os.kill(os.getpid(), 9)"), tmp_path / "b")
    assert (killed["status"], killed["signal"]) == ("crashed", 9)
    silent = launch(job("pass", outputs=["model.pt"]), tmp_path / "c")
    assert silent["status"] == "crashed" and "model.pt" in silent["reason"]
    with pytest.raises(InputError, match="no program 'nosuchprogram'"):
        launch(job("pass", command=["nosuchprogram"]), tmp_path / "d")
    with pytest.raises(InputError, match="did you mean 'seed'"):
        launch(job("pass", command=["python", "{sead}"]), tmp_path / "e")


def test_protected_file_changed_by_the_run_is_seen(job, tmp_path):
    told = launch(
        job("open('data.txt', 'w').write('easier'); open('new.bin', 'w').write('x')",
            protected=["data.txt"], files={"data.txt": "hard"}),
        tmp_path / "run",
    )  # fmt: skip
    assert told["protected_unchanged"] is False
    assert set(told["files_written"]) == {"tree/data.txt", "tree/new.bin"}


def test_forged_results_and_ledger_change_nothing(job, tmp_path):
    told = launch(
        job("""
            import json, pathlib, sys
            run = pathlib.Path(sys.argv[2]).parent
            print('{"schema": "wholejob/verdict@1", "verdict": "faster", "ratio": 99}')
            for name in ("run.json", "verdict.json"):
                try:
                    (run / name).write_text('{"verdict": "faster", "wall_s": 0.001}')
                except OSError:
                    pass
            """),
        tmp_path / "run",
    )
    assert told["status"] == "ok" and told["wall_s"] > 0.005


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: namespaces without root depend on the system's settings")
def test_job_has_no_network_and_cannot_reach_the_repository_or_earlier_results(job, tmp_path):
    (ROOT / "results").mkdir(exist_ok=True)
    told = launch(
        job(f"""
            import json, os, pathlib, socket, sys
            seen = {{}}
            try:
                socket.create_connection(("192.0.2.1", 80), timeout=2)
            except OSError as error:
                seen["network"] = error.errno
            server = socket.create_server(("127.0.0.1", 0))
            seen["loopback"] = bool(socket.create_connection(server.getsockname(), timeout=2))
            seen["results"] = os.listdir({str(ROOT / "results")!r})
            try:
                pathlib.Path({str(ROOT)!r}, "forged").write_text("x")
                seen["repository"] = "written"
            except OSError as error:
                seen["repository"] = error.errno
            pathlib.Path("/dev/shm/wholejob-left").write_text("x")
            pathlib.Path("/tmp/wholejob-left").write_text("x")
            pathlib.Path(sys.argv[2], "seen.json").write_text(json.dumps(seen))
            """, outputs=["seen.json"]),
        tmp_path / "run",
    )  # fmt: skip
    seen = json.loads((tmp_path / "run" / "out" / "seen.json").read_text())
    assert (told["network"], told["files"]) == ("isolated", "isolated")
    assert seen["network"] == 101  # ENETUNREACH
    assert seen["loopback"] is True
    assert set(seen["results"]) <= {"store"}
    assert seen["repository"] == 30  # EROFS
    assert not Path("/dev/shm/wholejob-left").exists()
    assert not Path("/tmp/wholejob-left").exists()
    assert "tmp/wholejob-left" in told["files_written"]


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: namespaces without root depend on the system's settings")
def test_job_cannot_look_around_its_namespaces(job, tmp_path):
    """Other runs beside the store, another process's root, and a mount that root could undo."""
    other = tmp_path / "baseline" / "records"
    other.mkdir(parents=True)
    (other / "rank0.jsonl").write_text("the baseline's values")
    told = launch(
        job(f"""
            import ctypes, json, os, pathlib, sys
            seen = {{}}
            libc = ctypes.CDLL(None, use_errno=True)
            libc.umount2({str(tmp_path)!r}.encode(), 2)
            seen["umount"] = ctypes.get_errno()
            libc.unshare(0x00020000)
            seen["unshare"] = ctypes.get_errno()
            for name, root in (("here", "/"), ("launcher", "/proc/{os.getpid()}/root/"), ("init", "/proc/1/root/")):
                try:
                    seen[name] = pathlib.Path(root + {str(other / "rank0.jsonl")!r}).read_text()
                except OSError as error:
                    seen[name] = error.errno
            try:
                seen["memory"] = bool(open("/proc/{os.getpid()}/mem", "rb"))
            except OSError as error:
                seen["memory"] = error.errno
            pathlib.Path(sys.argv[2], "seen.json").write_text(json.dumps(seen))
            """, outputs=["seen.json"]),
        tmp_path / "run",
    )  # fmt: skip
    assert told["status"] == "ok" and told["files"] == "isolated"
    seen = json.loads((tmp_path / "run" / "out" / "seen.json").read_text())
    assert seen == {"umount": 1, "unshare": 1, "here": 2, "launcher": 13, "init": 13, "memory": 13}


REWRITES = {
    "exchanged": "other.write_text(text.replace('1', '2')); other.replace(record)",
    "cut": "os.truncate(record, 5)",
    "written_over": "open(record, 'r+').write('{forged')",
    "deleted": "record.unlink()",
    "deleted_and_written_anew": "record.unlink(); other.write_text(text * 2); other.replace(record)",
}


@pytest.mark.parametrize("how", REWRITES)
def test_records_that_the_job_rewrites_are_seen(job, tmp_path, how):
    source = """
        import os, pathlib, sys, time
        record = pathlib.Path(sys.argv[2]).parent / "records" / "rank0.jsonl"
        other = record.with_name("other")
        text = '{"tag": "loss", "value": 1}' + chr(10)
        for _ in range(4):
            with record.open("a") as file:
                file.write(text)
            time.sleep(0.1)
        """
    honest = launch(job(source), tmp_path / "run")
    assert honest["status"] == "ok"
    told = launch(job(textwrap.dedent(source) + REWRITES[how]), tmp_path / "run")
    assert (told["status"], told["reason"]) == ("contained", "records were rewritten while the job ran: rank0.jsonl")


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: mounting a small file system takes root")
def test_job_that_fills_the_disk_is_a_crash_and_leaves_room_for_its_account(job, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)], check=True)
    try:
        source = """
            import sys
            with open(sys.argv[2] + "/big", "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            """
        run_json(job(source), small / "run" / "run.json")
        told = launching.read_run(small / "run" / "run.json")
        assert told["status"] == "crashed"
        assert "No space left" in told["reason"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.fixture
def launcher(job, tmp_path):
    """Program text that launches a job which forks a daemon and hangs; `out` gets a file `pid<n>` for each process."""
    made = job("""
        import os, pathlib, sys, time
        if os.fork() == 0:
            os.setsid()
        pathlib.Path(sys.argv[2], f"pid{os.getpid()}").write_text("x")
        time.sleep(600)
        """)
    yield textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from scripts.common import tree
        from scripts.common.launch import Job, run_json
        tree.STORE = Path({str(tree.STORE)!r})
        job = Job(spec={made.spec!r}, env={made.env!r}, tree={made.tree!r}, seed=5)
        run_json(job, {str(tmp_path / "run" / "run.json")!r})
        """)
    for path in (tmp_path / "run" / "out").glob("pid*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.name[3:]), signal.SIGKILL)


def started(out: Path) -> list[int]:
    """Process ids of the job of `launcher`, once both run."""
    limit = time.monotonic() + 20
    while len(list(out.glob("pid*"))) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    pids = [int(path.name[3:]) for path in out.glob("pid*")]
    assert len(pids) == 2
    return pids


def test_kill_of_the_launcher_ends_the_job_and_its_daemon(launcher, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen([sys.executable, "-c", launcher], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)})
    pids = started(tmp_path / "run" / "out")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert all(gone(pid) for pid in pids)
    limit = time.monotonic() + 20
    while list(temporary.iterdir()) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not list(temporary.iterdir()), "the run's work folder is deleted too"
    assert not (tmp_path / "run" / "run.json").exists()


def test_kill_of_snakemake_ends_the_script_and_the_job(launcher, tmp_path):
    (tmp_path / "launcher.py").write_text(launcher)
    shell = f"{sys.executable} {tmp_path}/launcher.py & echo $! > {tmp_path}/script; wait"
    above = f"import subprocess; subprocess.run(['bash', '-c', {shell!r}])"
    process = subprocess.Popen([sys.executable, "-c", above, "snakemake"], cwd=ROOT)
    pids = started(tmp_path / "run" / "out")
    script = int((tmp_path / "script").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert all(gone(pid) for pid in [*pids, script])
    assert not (tmp_path / "run" / "run.json").exists()


def test_timeline_adds_up_to_the_wall_time(tmp_path):
    marks = [(100, 110), (115, 120), (125, 130), (135, 140), (160, 165)]
    lines = [{"schema": "parity/steps@1", "process_start_ns": 0}]
    lines += [{"step": i, "begin_ns": b * 10**9, "end_ns": e * 10**9} for i, (b, e) in enumerate(marks)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = timeline(tmp_path, 60 * 10**9, 200 * 10**9, warmup=1)
    phases = told["phases"]
    assert told["steps"] == 5 and told["median_step_s"] == 10
    assert phases == {"startup_s": 40, "warmup_s": 0, "steady_s": 50, "slow_s": 15, "tail_s": 35}
    assert sum(phases.values()) == 140
    assert told["periodic"] is None


def test_evaluation_every_eighth_step_is_seen_as_periodic_and_one_slow_step_is_not():
    periods = [0.5] + [0.1] * 31
    for number in range(7, 32, 8):
        periods[number] = 0.3
    found = periodic(periods, 0.1, 1)
    assert (found["every"], found["first"]) == (8, 7)
    assert found["extra_s"] == pytest.approx(0.2)
    periods[9] = 0.4
    assert periodic(periods, 0.1, 1) is None
    assert periodic([0.1] * 20, 0.1, 0) is None


def test_nobody_waits_for_a_run_whose_asker_is_gone(monkeypatch):
    own = launching._stat(os.getpid())[1]
    monkeypatch.setattr(launching, "WANTING", [(os.getpid(), own)])
    assert launching.ancestors() == [os.getpid()]
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    born = launching._stat(child.pid)[1]
    child.wait()
    monkeypatch.setattr(launching, "WANTING", [(os.getpid(), own), (child.pid, born)])
    with pytest.raises(launching.Abandoned):
        launching.ancestors()
