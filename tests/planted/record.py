"""Run a job under torch.profiler with step marks, with nothing but torch: what the planted jobs and a bare GPU
machine use.

    python tests/planted/record.py --out DIR [--window 2:5] [--plain] [--cpu-clock] -- job.py ARGS...

Steps are optimizer steps; in a job without an optimizer, calls of the outermost module. Leaves DIR/trace.json.gz
(window only),
DIR/records/steps.jsonl and DIR/run.json in the form of docs/formats.md. `--plain` leaves the trace out: the job's
own speed.
"""

import argparse
import atexit
import builtins
import gzip
import json
import resource
import runpy
import shutil
import sys
import time
from pathlib import Path

# On a machine shared with others, process CPU time tells what a one-thread job would take alone.
now = time.process_time_ns if "--cpu-clock" in sys.argv else time.monotonic_ns
START = now() if now is time.monotonic_ns else 0


class Recorder:
    """Step marks on the host clock and, between two of them, a profiler window."""

    def __init__(self, out, window, plain):
        self.out, self.window, self.plain = Path(out), window, plain
        self.marks, self.begin, self.profiler, self.depth, self.trains = [], None, None, 0, False
        self.imported, self.batches, self.imports = None, [], 0
        (self.out / "records").mkdir(parents=True, exist_ok=True)

    def time_imports(self):
        """Seconds in outermost imports: what a job's start-up cannot do without."""
        importing, recorder, depth = builtins.__import__, self, [0]

        def timed(*args, **kwargs):
            depth[0] += 1
            begin = now()
            try:
                return importing(*args, **kwargs)
            finally:
                depth[0] -= 1
                if depth[0] == 0:
                    recorder.imports += now() - begin

        builtins.__import__ = timed

    def install(self):
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch, self.imported = torch, now()
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

    def leave(self, *_):
        self.depth -= 1
        if self.depth == 0 and not self.trains and not self.torch.is_grad_enabled():
            self.step(training=False)

    def step(self, training):
        if training and not self.trains:
            self.trains, self.marks = True, []
        mark = now()
        self.marks.append((self.begin or START, mark))
        self.begin = mark
        done = len(self.marks)
        if not self.plain and done == self.window[0]:
            activities = [self.torch.profiler.ProfilerActivity.CPU]
            if self.torch.cuda.is_available():
                activities.append(self.torch.profiler.ProfilerActivity.CUDA)
            self.profiler = self.torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True)
            self.profiler.start()
        if self.profiler and done >= self.window[1]:
            self.stop()

    def stop(self):
        if self.profiler:
            profiler, self.profiler = self.profiler, None
            profiler.stop()
            plain = self.out / "trace.json"
            profiler.export_chrome_trace(str(plain))
            with plain.open("rb") as raw, gzip.open(self.out / "trace.json.gz", "wb", compresslevel=1) as packed:
                shutil.copyfileobj(raw, packed)
            plain.unlink()
            self.begin = now()

    def finish(self):
        self.stop()
        end = now()
        with (self.out / "records" / "steps.jsonl").open("w") as file:
            file.write(
                json.dumps(
                    {
                        "schema": "parity/steps@1",
                        "process_start_ns": START,
                        "torch_imported_ns": self.imported,
                        "imports_ns": self.imports,
                    }
                )
                + "\n"
            )
            for number, (begin, mark) in enumerate(self.marks):
                file.write(
                    json.dumps(
                        {"step": number, "begin_ns": begin, "end_ns": mark, "device_ms": None, "epoch_offset_ns": None}
                    )
                    + "\n"
                )
        with (self.out / "records" / "rank0.jsonl").open("w") as file:
            for row in [{"schema": "parity/records@1", "torch": self.torch.__version__}, *self.batches]:
                file.write(json.dumps(row) + "\n")
        usage, gpu = resource.getrusage(resource.RUSAGE_SELF), self.torch.cuda.is_available()
        since = [(mark - START) / 1e9 for _, mark in self.marks]
        run = {
            "schema": "wholejob/run@1",
            "kind": "timed" if self.plain else "profiled",
            "status": "ok",
            "reason": None,
            "seed": 0,
            "perturb": None,
            "command": sys.argv,
            "tree": None,
            "environment": {"torch": self.torch.__version__, "gpus": []},
            "started_ns": time.time_ns(),
            "wall_s": (end - START) / 1e9,
            "cpu_user_s": usage.ru_utime,
            "cpu_system_s": usage.ru_stime,
            "peak_rss_bytes": usage.ru_maxrss * 1024,
            "peak_device_bytes": self.torch.cuda.max_memory_allocated() if gpu else None,
            "exit_code": 0,
            "signal": None,
            "load_at_start": None,
            "network": "open",
            "files": "open",
            "outputs": [],
            "outputs_missing": [],
            "files_written": [],
            "tree_verified": None,
            "protected_unchanged": True,
            "records": {},
            "first_step_s": since[0] if since else None,
            "last_step_s": since[-1] if since else None,
            "median_step_s": None,
            "steps": len(since),
            "phases": {},
            "warnings": [],
        }
        if gpu:
            run["environment"]["gpus"] = [{"name": self.torch.cuda.get_device_name()}]
        (self.out / "run.json").write_text(json.dumps(run, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--window", default="2:5")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--cpu-clock", action="store_true", help="step marks and wall_s in CPU seconds of the process")
    parser.add_argument("command", nargs="+", help="-- script.py ARGS")
    args = parser.parse_args()
    first, last = args.window.split(":")
    recorder = Recorder(args.out, (int(first), int(last)), args.plain)
    recorder.time_imports()
    recorder.install()
    atexit.register(recorder.finish)
    sys.argv = args.command
    sys.path[0] = str(Path(args.command[0]).resolve().parent)
    runpy.run_path(args.command[0], run_name="__main__")


if __name__ == "__main__":
    main()
