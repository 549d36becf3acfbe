"""One launch of a job, as every rule runs it: its own tree, a scrubbed environment, a clock outside, nothing left.

The job runs under a keeper process (`contain.py`) that owns the clock, the limits and the end of everything the job
started. Nothing that the job prints is believed; what it did is read from outside, or from what the recorder left.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parity import run as recorder
from scripts.common import knobs, machine, tree
from scripts.common.errors import InputError, suggestion
from scripts.common.files import ROOT, read_json, sha256_file, write_json
from scripts.common.globs import protected
from scripts.common.timeline import final_loss, software, timeline

SCHEMA = "wholejob/run@1"
ALLOWED = (
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "MKL_NUM_THREADS",
    "NCCL_SOCKET_IFNAME",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "PATH",
    "TZ",
)
"""What a job sees of the caller's environment. No key and no token is ever among it."""
CACHES = {
    "XDG_CACHE_HOME": "xdg",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TRITON_HOME": "triton-home",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TORCH_HOME": "torch",
    "HF_HOME": "huggingface",
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
}
"""Cache folders that are fresh in every run, so that no run profits from one before it."""
LOG_BYTES = 4 << 20
GRACE_S, LINGER_S, OUTLIVED_S = 3.0, 10.0, 1.0
PROCESSES = 2048
FILE_BYTES = 64 << 30
LISTED = 200
TAKEN = (
    "cpu_user_s", "cpu_system_s", "peak_rss_bytes", "peak_device_bytes", "exit_code", "signal", "load_at_start",
    "network", "files",
)  # fmt: skip
"""What `run.json` takes from the keeper's account as it is."""
PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


class Abandoned(SystemExit):
    """Whoever asked for this run is gone (Ctrl-C, a kill of Snakemake); the job was ended and nothing is written."""

    def __init__(self) -> None:
        print("abandoned: the process that asked for this run has ended; the job was ended too", file=sys.stderr)
        super().__init__(130)


@dataclass(frozen=True)
class Job:
    """What to run. `spec` and `env` are the documents of those names, `tree` the hash of a stored tree."""

    spec: dict[str, Any]
    env: dict[str, Any]
    tree: str
    seed: int
    kind: str = "checked"  # checked | timed | profiled
    steps: int | None = None  # None: measure.steps of the specification
    perturb: dict[str, Any] | None = None  # {"kind": "ulp", "seed": n}
    cover: dict[str, list[int]] | None = None  # {relative path: [lines]}: record which of them ran
    timeout_s: float | None = None  # None: launch.timeout_s


@dataclass(frozen=True)
class Place:
    """Where one run takes place: `work` is deleted after it, `kept` stays."""

    work: Path
    kept: Path

    @property
    def tree(self) -> Path:
        """The job's own copy of its source tree."""
        return self.work / "tree"

    @property
    def out(self) -> Path:
        """What the command's `{out}` is."""
        return self.kept / "out"

    @property
    def records(self) -> Path:
        """What the recorder writes into."""
        return self.kept / "records"


def launch(job: Job, out_dir: str | Path) -> dict[str, Any]:
    """Run `job` once and return the content of its `run.json`; `out_dir` gets `out/`, `records/` and `job.log`.

    Whatever the job does is an answer (`status`, `reason`); only a specification that cannot be launched raises
    InputError. Raises Abandoned where the caller's own caller has died. Blocks for the length of the job.
    """
    before = pristine(job.tree)
    place = Place(work=Path(tempfile.mkdtemp(prefix="wholejob-")).resolve(), kept=Path(out_dir).resolve())
    try:
        _fresh(place.kept)
        for name in ("home", "tmp", "cache", "empty"):
            (place.work / name).mkdir()
        tree.copy(tree.STORE / job.tree, place.tree)
        with _devices(job) as visible:
            plan = _plan(job, place, visible)
            told = {
                "command": _symbolic(job, place, plan["argv"]),
                "variables": _told(place, plan["env"]),
                "load_at_start": machine.load(),
            }
            with machine.device_memory(visible.split(",") if visible else None) as device:
                account = _keep(plan)
        if account["reason"] == "abandoned":
            raise Abandoned
        return _document(job, place, {**account, **told, "peak_device_bytes": device["peak_bytes"]}, before)
    finally:
        tree.remove(place.work)


def _devices(job: Job) -> contextlib.AbstractContextManager[str | None]:
    """The GPUs of this run as `CUDA_VISIBLE_DEVICES`, held until it ends: none (""), so many, or as the caller has it."""
    gpus = job.spec.get("resources", {}).get("gpus")
    if not gpus:  # a job that was declared without a GPU gets none
        return contextlib.nullcontext("" if gpus == 0 else None)
    return machine.devices(gpus, first=job.kind != "checked")


@cache
def pristine(identity: str) -> dict[str, dict[str, str]]:
    """Manifest of a stored tree, verified once a process: a race launches the same trees again and again."""
    return tree.manifest(tree.stored(identity))


def run_json(job: Job, path: str | Path) -> dict[str, Any]:
    """Launch into the folder of `path` and write `path`, the `run.json`, whole."""
    path = Path(path)
    path.unlink(missing_ok=True)
    document = launch(job, path.parent)
    if document["status"] != "ok":
        tree.remove(path.parent / "out")  # what a failed run wrote is no result, and may be all of the disk
    try:
        write_json(path, SCHEMA, document)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return document


def not_run(path: str | Path, job: Job, reason: str) -> None:
    """Write the `run.json` of a run that did not take place."""
    _fresh(Path(path).parent)
    write_json(
        path,
        SCHEMA,
        {
            "kind": job.kind,
            "status": "not_run",
            "reason": reason,
            "seed": job.seed,
            "perturb": job.perturb,
            "tree": job.tree or None,
        },
    )


def read_run(path: str | Path) -> dict[str, Any]:
    """A `run.json`."""
    return read_json(path, "run")


def last_lines(log: str | Path, count: int = 15) -> str:
    """The end of a job's log, for a person."""
    with contextlib.suppress(OSError):
        lines = Path(log).read_bytes()[-20000:].decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-count:])
    return ""


def command(job: Job, place: Place) -> list[str]:
    """The argument list with its placeholders replaced; `python` first means the interpreter of `env.json`."""
    values = _values(job, place)
    words = [_filled(word, values) for word in job.spec["launch"]["command"]]
    words += knobs.options(job.spec, _knobs(job, place))
    if words[0] == "python":
        words[0] = values["python"]
        ranks = job.spec["launch"].get("ranks", 1)
        if ranks > 1:
            words[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    found = words[0] if os.sep in words[0] else shutil.which(words[0], path=_path(job))
    if found is not None and not Path(found).is_absolute():
        found = str(place.tree / job.spec["launch"].get("workdir", ".") / found)
    if found is None or not Path(found).is_file():
        raise InputError(f"launch.command: no program {words[0]!r}; should be an executable on PATH, or 'python'")
    return [found, *words[1:]]


def environment(job: Job, place: Place, devices: str | None) -> dict[str, str]:
    """The job's whole environment: the allow-list, `devices`, fresh folders, the specification's variables, the recorder."""
    variables = {name: os.environ[name] for name in ALLOWED if name in os.environ}
    variables |= {name: str(place.work / "cache" / folder) for name, folder in CACHES.items()}
    variables |= {
        "PATH": _path(job),
        "HOME": str(place.work / "home"),
        "TMPDIR": str(place.work / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }
    if devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = devices
    variables |= job.spec.get("environment", {}).get("variables", {})
    for name, value in knobs.variables(job.spec, _knobs(job, place)).items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    return _recorder(job, place, variables)


def _knobs(job: Job, place: Place) -> knobs.Values:
    """The settings in the job's own copy of its tree: a patch may have changed them, to declared values only."""
    return knobs.read(place.tree, job.spec)[1] if job.spec.get("knobs") else {}


def _recorder(job: Job, place: Place, variables: dict[str, str]) -> dict[str, str]:
    """`variables` with what switches the recorder on, in the job's own process and in every rank of it."""
    profiled, profile = job.kind == "profiled", job.spec.get("profile", {})
    cover = None
    if job.cover and not profiled:
        cover = place.work / "cover.json"
        cover.write_text(json.dumps(job.cover), encoding="utf-8")
    switches = recorder.environment(
        place.records,
        mode=job.kind,
        # A model may call itself while it is built (YOLO finds its strides so); no step has begun then.
        unit="optimizer" if job.spec.get("kind") == "training" else "auto",
        probes=job.spec.get("parity", {}).get("probes"),
        seed=job.seed,
        perturb=job.perturb["kind"] if job.perturb else None,
        perturb_seed=job.perturb["seed"] if job.perturb else 0,
        profile=tuple(profile["steps"]) if profiled else None,
        stacks=profiled and profile["stacks"],
        structure=profiled,
        cover=cover,
        tree=place.tree,
        tree_hash=job.tree,
        pythonpath=variables.get("PYTHONPATH"),
    )
    return {**variables, **switches}


def _values(job: Job, place: Place) -> dict[str, str]:
    launch_spec, measure = job.spec["launch"], job.spec.get("measure", {})
    steps = job.steps if job.steps is not None else measure.get("steps")
    own = {
        "seed": job.seed,
        "out": place.out,
        "steps": steps,
        "tree": place.tree,
        "python": interpreter(job.env),
        "ranks": launch_spec.get("ranks", 1),
    }
    return {name: str(value) for name, value in {**job.spec.get("parameters", {}), **own}.items() if value is not None}


def _filled(word: str, values: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            known = ", ".join(sorted(values))
            raise InputError(f"launch.command: no value for {{{name}}}{suggestion(name, values)}; known are {known}")
        return values[name]

    return PLACEHOLDER.sub(value, word)


def interpreter(env: dict[str, Any]) -> str:
    """Absolute path of the interpreter of `env.json`; not resolved: a virtual environment is its link's place."""
    path = Path(env["python"])
    path = path if path.is_absolute() else ROOT / path
    if not path.exists():
        raise InputError(f"env.json: python: {env['python']} is gone; delete env.json and run again")
    return str(path)


def _path(job: Job) -> str:
    own = str(Path(interpreter(job.env)).parent)
    return os.pathsep.join([own, os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")])


def _fresh(kept: Path) -> None:
    """Make `kept` a folder without an earlier run's files, with an empty `out` and `records`."""
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("out", "records"):
        tree.remove(kept / name)
        (kept / name).mkdir()
    for name in ("job.log", "run.json"):
        (kept / name).unlink(missing_ok=True)


def _plan(job: Job, place: Place, devices: str | None) -> dict[str, Any]:
    """What the keeper is told."""
    cwd = place.tree / job.spec["launch"].get("workdir", ".")
    if not cwd.is_dir():
        raise InputError(f"launch.workdir: no folder {job.spec['launch']['workdir']!r} in the source tree")
    memory_gb = job.spec.get("resources", {}).get("memory_gb")
    argv = command(job, place)
    return {
        "argv": argv,
        "cwd": str(cwd),
        "env": environment(job, place, devices),
        "log": str(place.kept / "job.log"),
        "log_bytes": LOG_BYTES,
        "timeout_s": _timeout_s(job),
        "grace_s": GRACE_S,
        "linger_s": LINGER_S,
        "memory_bytes": int(memory_gb * 1e9) if memory_gb else None,
        "file_bytes": FILE_BYTES,
        "processes": PROCESSES,
        "watch": ancestors(),
        "isolate_network": True,
        "mounts": _mounts(job, place, argv),
        "remove": [str(place.work)],
        "records": str(place.records),
    }


def _timeout_s(job: Job) -> float:
    return job.timeout_s or job.spec["launch"].get("timeout_s", 3600)


def _keep(plan: dict[str, Any]) -> dict[str, Any]:
    """Hand the job to a keeper and wait for its account."""
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("contain.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert keeper.stdin and keeper.stdout
    try:
        keeper.stdin.write(json.dumps(plan).encode() + b"\n")
        keeper.stdin.flush()
        answer = keeper.stdout.read()
    except BrokenPipeError:
        answer = b""
    finally:
        keeper.stdin.close()  # ends the job where we leave early (Ctrl-C)
        keeper.wait()
    if not answer:
        if keeper.returncode == 3:
            raise Abandoned
        raise RuntimeError(f"the keeper of the job ended with code {keeper.returncode} and without an account")
    return json.loads(answer)


def ancestors() -> list[int]:
    """Processes whose end means that nobody wants this run: our parents, up to the topmost Snakemake.

    They are those of the time at which this program was loaded. Raises Abandoned where one of them is gone: a kill of
    Snakemake between two runs of a session leaves us other parents.
    """
    for pid, born in WANTING:
        if _stat(pid)[1] != born:
            raise Abandoned
    return [pid for pid, _ in WANTING]


def _ancestry() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    wanted, pid = 0, os.getppid()
    while pid > 1:
        parent, born = _stat(pid)
        if not born:
            break
        found.append((pid, born))
        with contextlib.suppress(OSError):
            if b"snakemake" in Path(f"/proc/{pid}/cmdline").read_bytes():
                wanted = len(found)
        pid = parent
    return found[:wanted]


def _stat(pid: int) -> tuple[int, str]:
    """(parent, start time in ticks, which tells it from a later process of the same number); (0, "") where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (0, "") if fields[0] == "Z" else (int(fields[1]), fields[19])
    except (OSError, ValueError, IndexError):
        return 0, ""


WANTING = _ancestry()


def _mounts(job: Job, place: Place, argv: list[str]) -> list[dict[str, Any]]:
    """What the job's file system looks like: our repository read-only, earlier results out of sight, a temporary folder
    and shared memory of its own. Where the system refuses, the run says `files: open`.
    """
    shared = [Path(name).resolve() for name in ("/tmp", "/var/tmp", tempfile.gettempdir())]
    temporary = sorted({path for path in shared if path.is_dir()})
    home = Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    mounts = []

    def bind(target: Path, source: Path | None, read_only: bool) -> None:
        mounts.append({"target": str(target), "source": str(source) if source else None, "read_only": read_only})

    if home.is_dir() and home != Path("/") and not place.work.is_relative_to(home):
        bind(home, home, True)
    for folder in temporary:
        bind(folder, place.work / "tmp", False)
    for path in _mentioned(job, argv):
        if set(temporary) & set(path.parents) and path not in temporary and not path.is_relative_to(place.work):
            bind(path, path, True)
    bind(place.work, place.work, False)
    bind(ROOT, ROOT, True)
    for number, results in enumerate(_results(place, temporary)):
        empty = place.work / "empty" / str(number)
        empty.mkdir(exist_ok=True)
        bind(results, empty, False)
        environments = results / "store" / "envs"
        if environments.is_dir():
            bind(environments, environments, True)
    for folder in (place.out, place.records):
        bind(folder, folder, False)
    if Path("/dev/shm").is_dir():
        bind(Path("/dev/shm"), None, False)
    return mounts


def _results(place: Place, temporary: list[Path]) -> list[Path]:
    """Folders with other runs' files: `results/`, and what this run and the store of trees have in common."""
    shared = Path(os.path.commonpath([tree.STORE.resolve(), place.kept]))
    outside = not any(path.is_relative_to(shared) for path in (ROOT, *temporary, Path(sys.prefix)))
    found = {ROOT / "results"} | ({shared} if outside else set())
    return sorted(path for path in found if path.is_dir())


def _mentioned(job: Job, argv: list[str]) -> list[Path]:
    """Existing folders that the job was told of: interpreter, arguments, variables, the caller's libraries."""
    prefix = Path(interpreter(job.env)).parents[1]
    values = [str(value) for value in job.spec.get("environment", {}).get("variables", {}).values()]
    values += [*argv, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    folders = {prefix, Path(sys.prefix), Path(sys.base_prefix)}
    for value in values:
        if value.startswith(os.sep):
            path = Path(value)
            folders |= {path} if path.is_dir() else {path.parent} if path.is_file() else set()
    return sorted(folders)


def _document(job: Job, place: Place, account: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The content of `run.json`; `before` is the manifest of the tree as the job got it."""
    outputs, missing = _outputs(job.spec["launch"].get("outputs", []), place.out)
    after = tree.manifest(place.tree) if place.tree.is_dir() else {}
    patterns = job.spec.get("source", {}).get("protected", [])
    changed = [path for path in before if protected(path, patterns) and after.get(path) != before[path]]
    status, reason = _status(job, account, missing)
    return {
        "kind": job.kind,
        "status": status,
        "reason": reason,
        "seed": job.seed,
        "perturb": job.perturb,
        "command": account["command"],
        "tree": job.tree,
        "environment": {
            **machine.fingerprint(),
            "software": software(place.records),
            "variables": account["variables"],
        },
        "started_ns": account["started_ns"],
        "wall_s": (account["ended_ns"] - account["launched_ns"]) / 1e9,
        **{name: account[name] for name in TAKEN},
        "outputs": outputs,
        "outputs_missing": missing,
        "files_written": _written(before, after, place.work),
        "tree_verified": _tree_verified(place.records, before),
        "protected_unchanged": not changed,
        "records": {path.name: sha256_file(path) for path in sorted(place.records.iterdir()) if path.is_file()},
        **timeline(place.records, account["launched_ns"], account["ended_ns"], job.spec["launch"].get("warmup", 2)),
        "final_loss": final_loss(place.records),
        "warnings": _warnings(account, changed),
    }


def _outlived_s(account: dict[str, Any]) -> float:
    """Seconds between the end of the main process and that of the last one."""
    return (account["ended_ns"] - (account["main_ended_ns"] or account["ended_ns"])) / 1e9


def _status(job: Job, account: dict[str, Any], missing: list[str]) -> tuple[str, str | None]:
    """`(status, reason)`; the first thing that went wrong is the reason."""
    if account["problem"]:
        return "crashed", f"could not start: {account['problem']}"
    if account["reason"] == "timeout":
        return "timeout", f"did not end within {_timeout_s(job):g} s (launch.timeout_s); its processes were ended"
    if account["reason"] == "memory":
        limit = job.spec["resources"]["memory_gb"]
        return "crashed", f"used more than {limit:g} GB (resources.memory_gb); its processes were ended"
    if account["reason"] == "processes":
        return "crashed", f"started more than {PROCESSES} processes; they were ended"
    if account["rewritten"]:
        return "contained", f"records were rewritten while the job ran: {', '.join(account['rewritten'])}"
    if left := account["left_behind"]:
        return "contained", f"left {len(left)} process(es) behind, which were ended: {left[0]}"
    if account["signal"] is not None:
        return "crashed", f"ended by signal {account['signal']}"
    if account["exit_code"] != 0:
        return "crashed", f"exit code {account['exit_code']}" + (f": {said}" if (said := account["last_line"]) else "")
    if _outlived_s(account) > OUTLIVED_S:
        return "contained", f"processes outlived the main one by {_outlived_s(account):.1f} s"
    if missing:
        return "crashed", f"ended without writing {', '.join(missing)} (launch.outputs)"
    return "ok", None


def _warnings(account: dict[str, Any], changed: list[str]) -> list[str]:
    found = machine.gpu_problems()
    if _outlived_s(account) > 0.05:
        found.append(f"processes outlived the main one by {_outlived_s(account):.2f} s; their time is counted")
    if account["log_dropped"]:
        found.append(f"{account['log_dropped']} bytes of the job's output were left out of job.log")
    if changed:
        found.append(f"protected files were changed by the run: {', '.join(changed[:5])}")
    return found


def _outputs(globs: list[str], out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Declared outputs that exist, with size and hash, and the globs that matched no file."""
    found, missing = {}, []
    for pattern in globs:
        matched = [path for path in sorted(out.glob(pattern)) if path.is_file()]
        if not matched:
            missing.append(pattern)
        for path in matched:
            found[path.relative_to(out).as_posix()] = path
    listed = [
        {"path": name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for name, path in sorted(found.items())
    ]
    return listed, missing


def _written(before: dict[str, Any], after: dict[str, Any], work: Path) -> list[str]:
    """Files that the run made or changed outside `{out}`: in its tree, home, temporary folder and caches."""
    found = [f"tree/{path}" for path in sorted({*before, *after}) if after.get(path) != before.get(path)]
    for name in ("home", "tmp", "cache"):
        found += sorted(path.relative_to(work).as_posix() for path in (work / name).rglob("*") if path.is_file())
    return found if len(found) <= LISTED else [*found[:LISTED], f"... and {len(found) - LISTED} more"]


def _tree_verified(records: Path, manifest: dict[str, Any]) -> bool | None:
    """Whether the files that the job imported from its tree have the tree's hashes; None where the job did not say."""
    files: dict[str, str] = {}
    for path in records.glob("ledger*.json"):
        with contextlib.suppress(OSError, ValueError):
            files |= json.loads(path.read_text(encoding="utf-8")).get("source_files") or {}
    if not files:
        return None
    return all(manifest.get(name, {}).get("sha256") == digest for name, digest in files.items())


def _told(place: Place, variables: dict[str, str]) -> dict[str, str]:
    """The job's variables as provenance: the run's own folders by their names; PATH would only tell of the caller."""
    return {
        name: value.replace(str(place.work), "{work}").replace(str(ROOT), "{root}")
        for name, value in sorted(variables.items())
        if name != "PATH"
    }


def _symbolic(job: Job, place: Place, argv: list[str]) -> list[str]:
    """The command with the places of this run replaced by their placeholders, so that two runs of one job agree."""
    for path, name in ((interpreter(job.env), "{python}"), (place.out, "{out}"), (place.tree, "{tree}")):
        argv = [word.replace(str(path), name) for word in argv]
    return argv
