"""Run a job under torch.profiler with step marks, with nothing but torch: what the planted jobs and a bare GPU
machine use.

    python tests/planted/record.py --out DIR [--window 2:5] [--plain] [--cpu-clock] [--ranks N] -- job.py ARGS...
    python tests/planted/record.py --serve

Steps are optimizer steps; in a job without an optimizer, calls of the outermost module. Leaves DIR/trace.json.gz
(window only), DIR/records/steps.jsonl and DIR/run.json in the form of docs/formats.md. `--plain` leaves the trace out:
the job's own speed. `--ranks N` starts the job N times with the variables of torchrun; rank r > 0 leaves
DIR/trace.rank<r>.json.gz alone. `--serve` imports torch once and reads one JSON list of arguments a line from standard
input: each runs in a fork, a fresh process without the seconds that the import takes, and answers with a line, its
exit status. Torch has not started a device by then, so that a fork may.
"""

import argparse
import builtins
import gzip
import json
import os
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

BEGUN = time.monotonic_ns()


class Recorder:
    """Step marks on one clock and, between two of them, a profiler window."""

    def __init__(self, out, window, plain, clock, start, *, infers=False):
        self.gpus, self.infers = [], infers
        self.out, self.window, self.plain, self.now, self.start = Path(out), window, plain, clock, start
        self.marks, self.begin, self.profiler, self.depth, self.trains = [], None, None, 0, False
        self.imported, self.first, self.batches, self.imports, self.device_ns = None, None, [], 0, 0
        self.rank = int(os.environ.get("RANK", "0"))
        (self.out / "records").mkdir(parents=True, exist_ok=True)

    def time_imports(self):
        """Seconds in outermost imports: what a job's start-up cannot do without."""
        importing, recorder, depth = builtins.__import__, self, [0]

        def timed(*args, **kwargs):
            depth[0] += 1
            begin = recorder.now()
            try:
                return importing(*args, **kwargs)
            finally:
                depth[0] -= 1
                if depth[0] == 0:
                    recorder.imports += recorder.now() - begin

        builtins.__import__ = timed

    def install(self):
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch, self.imported = torch, self.now()
        if hasattr(torch._C, "_cuda_init"):
            torch._C._cuda_init = self.timed_device(torch._C._cuda_init)
        register_optimizer_step_post_hook(lambda *_: self.step(training=True))
        torch.nn.modules.module.register_module_forward_pre_hook(self.enter)
        outer, recorder = torch.nn.Module.__call__, self

        # torch's tracer reads the local `self` of Module.__call__: another name there is a segmentation fault
        def call(self, *values, **named):
            if recorder.depth == 0 and len(recorder.batches) < 8:
                recorder.batch([*values, *named.values()])
            return outer(self, *values, **named)

        if not self.plain:
            torch.nn.Module.__call__ = call
        torch.nn.modules.module.register_module_forward_hook(self.leave, always_call=True)

    def timed_device(self, initialise):
        """Seconds that the driver takes to start the device: what a job's start-up cannot do without either."""

        def timed():
            begin = self.now()
            try:
                return initialise()
            finally:
                self.device_ns += self.now() - begin

        return timed

    def batch(self, values):
        """Summaries of integer inputs, as parity records them: enough to see padding."""
        for value in values:
            if isinstance(value, self.torch.Tensor) and not value.is_floating_point() and value.numel() > 64:
                flat = value.detach().flatten()
                picks = flat[self.torch.linspace(0, flat.numel() - 1, 64).long().to(flat.device)].tolist()
                self.batches.append(
                    {
                        "tag": "batch",
                        "step": len(self.marks),
                        "occurrence": 0,
                        "kind": "tensor",
                        "dtype": str(value.dtype),
                        "shape": list(value.shape),
                        "min": int(flat.min()),
                        "max": int(flat.max()),
                        "abs_mean": float(flat.double().abs().mean()),
                        "samples": picks,
                    }
                )

    def enter(self, *_):
        self.depth += 1
        if self.first is None:
            self.first = self.now()

    def leave(self, *_):
        self.depth -= 1
        if self.depth == 0 and not self.trains and (self.infers or not self.torch.is_grad_enabled()):
            self.step(training=False)

    def step(self, training):
        if training and not self.trains:
            self.trains, self.marks = True, []
        mark = self.now()
        self.marks.append((self.begin or self.start, mark))
        self.begin = mark
        done = len(self.marks)
        if not self.plain and done == self.window[0]:
            activities = [self.torch.profiler.ProfilerActivity.CPU]
            if self.torch.cuda.is_available():
                activities.append(self.torch.profiler.ProfilerActivity.CUDA)
            marks = {}
            if "RANK" in os.environ:  # as parity marks them: gloo's own annotations would hide the main thread else
                marks["schedule"] = lambda _: self.torch.profiler.ProfilerAction.RECORD
            self.profiler = self.torch.profiler.profile(
                activities=activities, record_shapes=True, with_stack=True, **marks
            )
            self.record_numbers(done + 1 == self.window[1])
            self.profiler.start()
        elif self.profiler and done >= self.window[1]:
            self.stop()
        elif self.profiler:
            self.record_numbers(done + 1 == self.window[1])
            if "RANK" in os.environ:
                self.profiler.step()

    def record_numbers(self, last):
        """As parity does (hooks/windows.py): torch keeps tensors alive while it records lists of numbers."""
        switch = getattr(self.torch._C._profiler, "_set_record_concrete_inputs_enabled_val", None)
        if switch is not None:
            switch(last and self.torch.cuda.is_available())

    def stop(self):
        if self.profiler:
            profiler, self.profiler = self.profiler, None
            profiler.stop()
            name = f"trace.rank{self.rank}.json" if self.rank else "trace.json"
            plain = self.out / name
            profiler.export_chrome_trace(str(plain))
            with plain.open("rb") as raw, gzip.open(self.out / f"{name}.gz", "wb", compresslevel=6) as packed:
                shutil.copyfileobj(raw, packed)
            plain.unlink()
            self.begin = self.now()

    def finish(self):
        self.stop()
        end = self.now()
        if self.rank:
            return
        write_steps(
            self.out / "records",
            self.marks,
            process_start_ns=self.start,
            torch_imported_ns=self.imported,
            first_activity_ns=self.first,
            imports_ns=self.imports,
            device_init_ns=self.device_ns,
        )
        with (self.out / "records" / "rank0.jsonl").open("w") as file:
            header = {"schema": "parity/records@1", "torch": self.torch.__version__, "backend": self.flags()}
            for row in [header, *self.batches]:
                file.write(json.dumps(row) + "\n")
        usage, gpu = resource.getrusage(resource.RUSAGE_SELF), self.torch.cuda.is_initialized()
        since = [(mark - self.start) / 1e9 for _, mark in self.marks]
        run = run_document(
            kind="timed" if self.plain else "profiled",
            command=sys.argv,
            environment={
                "torch": self.torch.__version__,
                "cores": len(os.sched_getaffinity(0)),
                "gpus": self.gpus if gpu else [],
            },
            started_ns=time.time_ns(),
            wall_s=(end - self.start) / 1e9,
            cpu_user_s=usage.ru_utime,
            cpu_system_s=usage.ru_stime,
            peak_rss_bytes=usage.ru_maxrss * 1024,
            peak_device_bytes=self.torch.cuda.max_memory_allocated() if gpu else None,
            first_step_s=since[0] if since else None,
            last_step_s=since[-1] if since else None,
            steps=len(since),
        )
        (self.out / "run.json").write_text(json.dumps(run, indent=1))

    def flags(self):
        """The backend's switches at the end of the job, as parity's header names them."""
        torch = self.torch
        return {
            "threads": torch.get_num_threads(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        }


def write_steps(records, marks, **head):
    """steps.jsonl of docs/formats.md from pairs (begin, end) in ns."""
    with (Path(records) / "steps.jsonl").open("w") as file:
        file.write(json.dumps({"schema": "parity/steps@1", **head}) + "\n")
        for number, (begin, mark) in enumerate(marks):
            row = {"step": number, "begin_ns": begin, "end_ns": mark, "device_ms": None, "epoch_offset_ns": None}
            file.write(json.dumps(row) + "\n")


def run_document(**known):
    """run.json of docs/formats.md of a run that went well; what is not given is unknown."""
    unknown = ["reason", "perturb", "tree", "started_ns", "wall_s", "cpu_user_s", "cpu_system_s", "peak_rss_bytes"]
    unknown += ["peak_device_bytes", "signal", "load_at_start", "tree_verified"]
    unknown += ["first_step_s", "last_step_s", "median_step_s"]
    plain = {
        "schema": "wholejob/run@1",
        "kind": "timed",
        "status": "ok",
        "seed": 0,
        "command": [],
        "environment": {},
        "exit_code": 0,
        "network": "open",
        "files": "open",
        "outputs": [],
        "outputs_missing": [],
        "files_written": [],
        "protected_unchanged": True,
        "records": {},
        "phases": {},
        "warnings": [],
    }
    return {**plain, **dict.fromkeys(unknown), **known}


def devices():
    """The devices as the launcher's fingerprint states them; [] without nvidia-smi. Asked before the job starts, so that
    processes and memory in use are others'."""

    def ask(what, fields):
        command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return []
        return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if "," in line]

    def number(word):
        try:
            return float(word)
        except ValueError:
            return None

    fields = "uuid,name,power.limit,power.default_limit,clocks_throttle_reasons.active,memory.used"
    apps = [uuid for _, uuid in ask("compute-apps", "pid,uuid")]
    return [
        {
            "name": name,
            "power_limit_w": number(limit),
            "default_power_limit_w": number(default),
            "throttle_reasons": int(reasons, 16) if reasons.startswith("0x") else None,
            "gpu_processes": apps.count(uuid),
            "memory_used_bytes": None if number(used) is None else int(number(used)) << 20,
        }
        for uuid, name, limit, default, reasons, used in ask("gpu", fields)
    ]


def neighbour():
    """Process id of a fork that computes on the device until it is ended; returns when it does."""
    reads, writes = os.pipe()

    def work():
        import torch

        torch.set_num_threads(1)
        device, width = ("cuda", 4096) if torch.cuda.is_available() else ("cpu", 64)
        y, told = torch.randn(width, width, device=device), 0
        while True:
            for _ in range(100):
                z = y @ y
            z.sum().item()
            if not told:
                told = os.write(writes, b"1")

    child = in_fork(work)
    os.close(writes)
    if not os.read(reads, 1):
        raise RuntimeError("the process beside the job could not start")
    return child


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--window", default="2:5")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--cpu-clock", action="store_true", help="step marks and wall_s in CPU seconds of the process")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--infers", action="store_true", help="a step is a call of the model, with gradients on as well"
    )
    parser.add_argument("command", nargs="+", help="-- script.py ARGS")
    return parser.parse_args(argv)


def record(args, start):
    """Run the job in this process, and write what was seen when it ends."""
    first, last = args.window.split(":")
    before = time.monotonic_ns()
    beside = neighbour() if os.environ.get("RECORD_BESIDE") else None
    gpus = devices()
    start += time.monotonic_ns() - before  # no part of the job
    # on a machine shared with others, process CPU time tells what a one-thread job would take alone
    clock = time.process_time_ns if args.cpu_clock else time.monotonic_ns
    recorder = Recorder(
        args.out, (int(first), int(last)), args.plain, clock, 0 if args.cpu_clock else start, infers=args.infers
    )
    recorder.gpus = gpus
    recorder.time_imports()
    recorder.install()
    sys.argv = args.command
    sys.path[0] = str(Path(args.command[0]).resolve().parent)
    try:
        runpy.run_path(args.command[0], run_name="__main__")
    finally:
        recorder.finish()
        if beside is not None:
            os.kill(beside, signal.SIGKILL)
            os.waitpid(beside, 0)


def in_fork(work):
    """Process id of a fork that does the work and ends with its exit status."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ranks(args, start):
    """Run the job in as many processes as it has ranks; the first that fails ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(args.ranks):
        os.environ.update(
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(args.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        )
        children.append(in_fork(lambda: record(args, start)))
    failed = 0
    while children:
        child, status = os.wait()
        if child not in children:
            continue
        children.remove(child)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in children:
                os.kill(other, signal.SIGTERM)
    sys.exit(failed)


def serve():
    """One run a line of standard input."""
    # what the forks need not import again: torch, and what its optimizers import when they are first used
    import torch
    import torch._dynamo
    import torch.profiler
    import torch.utils.checkpoint

    if torch.cuda.is_initialized():
        raise SystemExit("torch has started the device, which a fork cannot share")

    for line in sys.stdin:
        request = json.loads(line)
        start = time.monotonic_ns()

        def work(request=request, start=start):
            os.dup2(2, 1)  # what the job prints is no answer
            os.environ.update(request["environment"])
            args = parse(request["arguments"])
            (ranks if args.ranks > 1 else record)(args, start)

        _, status = os.waitpid(in_fork(work), 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def main():
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    args = parse(sys.argv[1:])
    (ranks if args.ranks > 1 else record)(args, BEGUN)


if __name__ == "__main__":
    main()
