"""The recorder: values go in during the job, JSON Lines come out, one file a rank.

Rules it keeps: nothing waits for the device inside a step (summaries are computed there and copied without blocking,
resolved when they have arrived); nothing is raised into the job (a failure becomes an error record and is counted);
the autograd graph is not kept; DataLoader workers and other children record nothing, except ranks of a process group.

Inside a `torch.compile`d region `record` does nothing, without a graph break; while a CUDA graph is captured it
writes an error record.

What is lost when the process ends: nothing where it ends by itself or through `os._exit` (which is wrapped here: it
writes first, then ends with the same status). A signal whose action is to end the process (SIGTERM without a handler
of the job's, SIGKILL) loses what was recorded since the step began or has not yet come from the device, and everything
that is written once at the end (the ledger, the step marks): the job's handling of signals is left alone.

Cost: off, one global look-up. On, a scalar costs microseconds, a tensor what `parity.summary` says; one write(2) a
step.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would be half of the import time
    from typing import Any, Callable, Dict, List, Optional, Tuple

SCHEMA = "parity/records@1"
QUEUE_LIMIT = 256
EXIT_WAIT_S = 20.0  # how long `os._exit` may wait for the last records: a device that hangs must not keep the job

_on = os.environ.get("PARITY", "") == "1"


def record(
    tag: str,
    value: Any,
    *,
    step: Optional[int] = None,
    rtol: Optional[float] = None,
    atol: Optional[float] = None,
    note: Optional[str] = None,
) -> None:
    """Record a value under `tag`: bool, int, float, str, a torch or numpy scalar, a tensor or array, or dicts and lists
    of these.

    A dict or list flattens to `tag.key`. `step` is the current step unless given; a tag recorded again in a step gets
    the next occurrence. `rtol` and `atol` are the tolerance `atol + rtol * |expected|` that a comparison uses for it.
    """
    if not _on:
        return
    if _compiling():
        return
    _recorder.add(tag, value, step, rtol, atol, note)


def record_lazy(tag: str, function: Callable[[], Any], **options: Any) -> None:
    """Like `record(tag, function(), ...)`, but `function` is not called when recording is off."""
    if not _on:
        return
    if _compiling():
        return
    try:
        value = function()
    except Exception as error:  # the job must not see it
        _recorder.fail(tag, options.get("step"), "the function raised %s: %s" % (type(error).__name__, error))
        return
    _recorder.add(tag, value, options.get("step"), options.get("rtol"), options.get("atol"), options.get("note"))


def enabled() -> bool:
    """Whether this process records."""
    return _on


def set_enabled(on: bool) -> None:
    """Switch recording on or off in this process; off keeps what was recorded."""
    global _on  # noqa: PLW0603 - a module global is what makes `record` cheap when off
    _on = bool(on)
    if _on:
        _bind()


def set_default_tolerance(rtol: Optional[float] = None, atol: Optional[float] = None) -> None:
    """Tolerance of the later records that give none."""
    _recorder.default_rtol, _recorder.default_atol = rtol, atol


def step(number: int) -> None:
    """Set the current step, and write what has arrived from the device. Costs nothing when off."""
    if not _on:
        return
    if _compiling():
        return
    _recorder.begin_step(number)


def flush() -> None:
    """Wait for the device and write everything recorded so far. Not for use inside a step."""
    if _on:
        _recorder.flush()


def reset() -> None:
    """Forget the steps and occurrences seen, and what is not yet written. The file stays."""
    _recorder.reset()


class Recorder:
    """One process's records: a queue in program order whose head is written as soon as its numbers have arrived."""

    def __init__(self) -> None:
        self.default_rtol: Optional[float] = None
        self.default_atol: Optional[float] = None
        self.errors = 0
        self.written = 0
        self.owner: Optional[bool] = None  # whether this process owns the rank's file; None: not yet asked
        self.rank = 0
        self.started_ns = time.time_ns()
        self.is_child = False
        self.path: Optional[str] = None
        self.file: Optional[int] = None  # descriptor of the rank's file
        self.pid = os.getpid()
        self.ended: Dict[str, Any] = {"by": "exit"}
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        self.current = 0
        self.queue: List[_Item] = []
        self.unshipped: List[_Item] = []
        self.seen: Dict[str, List[int]] = {}  # tag -> [last step, occurrences in it]

    def add(  # noqa: PLR0917 - positional, because it is called on every step
        self, tag: Any, value: Any, at: Optional[int], rtol: Optional[float], atol: Optional[float], note: Optional[str]
    ) -> None:
        """Queue a value; never raises."""
        try:
            if not self.claim():
                return
            rtol = self.default_rtol if rtol is None else rtol
            atol = self.default_atol if atol is None else atol
            extra = {k: v for k, v in (("rtol", rtol), ("atol", atol), ("note", note)) if v is not None}
            with self.lock:
                self._flatten(tag, value, self.current if at is None else at, extra)
                if len(self.queue) >= QUEUE_LIMIT and len(self.queue) % 64 == 0:  # the device may be far behind
                    self.write_arrived()
        except Exception as error:
            self.fail(tag, at, "%s: %s" % (type(error).__name__, error))

    def add_hash(self, tag: str, whole: Any, at: Optional[int]) -> None:
        """Queue an int64 scalar of any device as 16 hexadecimal digits."""
        if not self.claim():
            return
        torch = sys.modules["torch"]
        item = _scalar_item(torch, whole, torch.cuda.current_stream(whole.device) if whole.is_cuda else None)
        if item.finish is None:
            item.entry = {"kind": "str", "value": "%016x" % (item.entry["value"] % 2**64)}
        else:
            item.entry = {"kind": "str"}
            item.finish = lambda numbers: {"value": "%016x" % (numbers[0] % 2**64)}
        self._enqueue(tag, item, self.current if at is None else at, {})

    def add_summary(self, tag: str, at: int, vector: Any, meta: Dict[str, Any]) -> None:
        """Queue a summary that was started earlier; waits for the device."""
        from parity import summary

        if self.claim():
            self._enqueue(tag, _Item(dict({"kind": "tensor"}, **summary.resolve(meta, vector.tolist()))), at, {})

    def fail(self, tag: Any, at: Optional[int], message: str) -> None:
        """Write a failure down as a record."""
        self.errors += 1
        try:
            if not self.claim():
                return
            at = self.current if at is None else at
            name = str(tag)
            entry = {"tag": name, "step": at, "occurrence": self._occurrence(name + "\0error", at), "kind": "error"}
            entry["error"] = " ".join(str(message).split())[:500]
            self.queue.append(_Item(entry))
        except Exception:  # not even that: the count says so
            pass

    def begin_step(self, number: int) -> None:
        """Move to a step: send what waits on the device, write what has arrived. Does not wait."""
        try:
            with self.lock:
                self.current = int(number)
                self._ship()
            if self.queue:
                self.write_arrived()
        except Exception as error:
            self.fail("step", None, "%s: %s" % (type(error).__name__, error))

    def flush(self) -> None:
        """Wait for everything and write it; never raises."""
        try:
            with self.lock:
                self._ship()
                for item in self.queue:
                    item.wait()
                self._write_arrived()
        except Exception as error:
            self.errors += 1
            print("parity: could not write records: %s" % error, file=sys.stderr)

    def write_arrived(self) -> None:
        """Append the records at the head of the queue whose numbers are there."""
        with self.lock:
            self._write_arrived()

    def _write_arrived(self) -> None:
        if _capturing():
            return
        self._ship()
        ready = 0
        for item in self.queue:
            if not item.arrived():
                break
            ready += 1
        if ready:
            head, self.queue = self.queue[:ready], self.queue[ready:]
            self._append([item.fields() for item in head])

    def claim(self) -> bool:
        """Whether this process writes; the first call makes the rank's file, with its header."""
        if self.owner is not None:
            return self.owner
        with self.lock:
            return self._claim()

    def _claim(self) -> bool:
        if self.owner is None:
            if self.is_child or _is_worker():
                rank = _group_rank()
                if rank is None or _is_loader_worker():
                    return False
                _finish_in_child(self)
            try:
                self.owner = self._open()
            except OSError as error:
                self.owner = False
                self.errors += 1
                print(
                    "parity: cannot write to %s (%s); nothing is recorded" % (folder(), error.strerror), file=sys.stderr
                )
        return self.owner

    def taken(self) -> bool:
        """Whether another process has written this rank's file."""
        return not self.owner and os.path.exists(os.path.join(folder(), "rank%d.jsonl" % self.rank))

    def output(self, name: str, suffix: bool = True) -> str:
        """Path of another file of this rank: `ledger.json`, `ledger.rank1.json`."""
        stem, dot, end = name.partition(".")
        middle = ".rank%d" % self.rank if suffix and self.rank else ""
        return os.path.join(folder(), stem + middle + dot + end)

    def _open(self) -> bool:
        rank = _group_rank()
        self.rank = rank if rank is not None else int(os.environ.get("RANK", "0") or 0)
        os.makedirs(folder(), exist_ok=True)
        self.path = os.path.join(folder(), "rank%d.jsonl" % self.rank)
        try:
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            print(
                "parity: %s exists already (an earlier run, or another process of this one); nothing is recorded here"
                % self.path,
                file=sys.stderr,
            )
            return False
        self.pid = os.getpid()
        _bind()
        from parity.environment import header

        self._append([dict({"schema": SCHEMA}, **header(self))])
        return True

    def _append(self, rows: List[Dict[str, Any]]) -> None:
        import json

        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in map(_strict, rows))
        data = memoryview(lines.encode())
        while data:
            data = data[os.write(self.file if self.file is not None else -1, data) :]
        self.written += len(rows)

    def _flatten(self, tag: Any, value: Any, at: int, extra: Dict[str, Any]) -> None:
        if not isinstance(tag, str) or not tag or tag.split() != [tag]:
            raise ValueError("a tag is a non-empty text without spaces, not %r" % (tag,))
        if isinstance(value, dict):
            for key, part in value.items():
                self._flatten("%s.%s" % (tag, key), part, at, extra)
        elif isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                self._flatten("%s.%d" % (tag, index), part, at, extra)
        else:
            try:
                item = _item(tag, value)
            except Exception as error:  # one bad leaf does not cost its siblings
                self.fail(
                    tag,
                    at,
                    str(error) if type(error).__name__ == "Refused" else "%s: %s" % (type(error).__name__, error),
                )
                return
            self._enqueue(tag, item, at, extra)

    def _enqueue(self, tag: str, item: _Item, at: int, extra: Dict[str, Any]) -> None:
        occurrence = self._occurrence(tag, at)
        if occurrence < 0:
            self.fail(tag, at, "duplicate: this tag was already recorded at a later step than %d" % at)
            return
        item.entry = dict({"tag": tag, "step": at, "occurrence": occurrence}, **item.entry, **extra)
        self.queue.append(item)
        if item.vector is not None:
            self.unshipped.append(item)
            if len(self.unshipped) >= 64:
                self._ship()

    def _occurrence(self, tag: str, at: int) -> int:
        last = self.seen.get(tag)
        if last is None or at > last[0]:
            self.seen[tag] = [at, 1]
            return 0
        if at < last[0]:
            return -1
        last[1] += 1
        return last[1] - 1

    def _ship(self) -> None:
        """Start one copy to the host for each device and dtype that has waiting vectors."""
        if not self.unshipped or _capturing():
            return
        waiting, self.unshipped = self.unshipped, []
        torch = sys.modules["torch"]
        groups: Dict[Any, List[_Item]] = {}
        for item in waiting:
            groups.setdefault((item.vector.device, item.vector.dtype, item.stream), []).append(item)
        for (device, _, stream), items in groups.items():
            with torch.no_grad():
                if stream is None:
                    _Batch(torch, items, None)
                else:
                    with torch.cuda.device(device), torch.cuda.stream(stream):
                        _Batch(torch, items, stream)


class _Item:
    """One record, with the numbers that are still on their way."""

    __slots__ = ("batch", "entry", "finish", "offset", "stream", "vector")

    def __init__(self, entry: Dict[str, Any], vector: Any = None, finish: Any = None, stream: Any = None) -> None:
        self.entry = entry
        self.vector = vector
        self.finish = finish
        self.stream = stream
        self.batch: Any = None
        self.offset: Tuple[int, int] = (0, 0)

    def arrived(self) -> bool:
        return self.finish is None or (self.batch is not None and self.batch.arrived())

    def wait(self) -> None:
        if self.batch is not None:
            self.batch.wait()

    def fields(self) -> Dict[str, Any]:
        if self.finish is not None:
            self.entry = dict(self.entry, **self.finish(self.batch.numbers(*self.offset)))
            self.finish = None
        return self.entry


class _Batch:
    """Vectors of one stream joined and copied to pinned memory; an event tells when they are there."""

    def __init__(self, torch: Any, items: List[_Item], stream: Any) -> None:
        joined = torch.cat([item.vector for item in items])
        start = 0
        for item in items:
            size = item.vector.numel()
            item.batch, item.offset, item.vector = self, (start, start + size), None
            start += size
        self.event = None
        if stream is None:  # a device without streams that we know: copied when it is read
            self.host = joined
        else:
            self.host = torch.empty(joined.shape, dtype=joined.dtype, device="cpu", pin_memory=True)
            self.host.copy_(joined, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record(stream)
        self.values: Optional[List[Any]] = None

    def arrived(self) -> bool:
        return self.event is not None and self.event.query()

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()
        elif self.values is None:
            self.values = self.host.tolist()
            self.event = _Arrived()

    def numbers(self, start: int, end: int) -> List[Any]:
        if self.values is None:
            self.values = self.host.tolist()
        return self.values[start:end]


class _Arrived:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


def folder() -> str:
    """Where this process's records go."""
    return os.environ.get("PARITY_OUT") or "parity-records"


def _item(tag: str, value: Any) -> _Item:
    if isinstance(value, bool):
        return _Item({"kind": "bool", "value": value})
    if isinstance(value, int):
        return _Item({"kind": "int", "value": int(value)})
    if isinstance(value, float):
        return _Item({"kind": "float", "value": float(value)})
    if isinstance(value, str):
        return _Item({"kind": "str", "value": value})
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_item(torch, tag, value)
    np = sys.modules.get("numpy")
    if np is not None and isinstance(value, (np.generic, np.ndarray)):
        return _numpy_item(np, torch, tag, value)
    raise TypeError(
        "cannot record a %s; give a number, a text, a tensor, or dicts and lists of these" % type(value).__name__
    )


def _tensor_item(torch: Any, tag: str, value: Any) -> _Item:
    from parity import summary

    stream = None
    if value.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            raise summary.Refused("recorded during CUDA graph capture; record outside the captured region")
        stream = torch.cuda.current_stream(value.device)
    if value.dim() == 0:
        return _scalar_item(torch, summary.plain(torch, value), stream)
    vector, meta = summary.compute(torch, value, tag)
    if vector.device.type == "cpu":
        return _Item(dict({"kind": "tensor"}, **summary.resolve(meta, vector.tolist())))
    return _Item({"kind": "tensor"}, vector, lambda numbers: summary.resolve(meta, numbers), stream)


def _scalar_item(torch: Any, value: Any, stream: Any) -> _Item:
    value = value.detach()
    cast: Any
    if value.dtype == torch.bool:
        kind, cast, wide = "bool", bool, torch.int64
    elif value.dtype.is_floating_point:
        kind, cast, wide = "float", float, torch.float32 if value.device.type == "mps" else torch.float64
    else:
        kind, cast, wide = "int", int, torch.int64
    if value.device.type == "cpu":
        return _Item({"kind": kind, "value": cast(value.item())})
    with torch.no_grad():
        copied = value.to(wide, copy=True).reshape(1)
    return _Item({"kind": kind}, copied, lambda numbers: {"value": cast(numbers[0])}, stream)


def _numpy_item(np: Any, torch: Any, tag: str, value: Any) -> _Item:
    from parity import summary

    if value.ndim == 0:
        plain = value.item()
        if not isinstance(plain, (bool, int, float, str)):
            raise summary.Refused("numpy values of %s are not recorded" % value.dtype)
        return _item(tag, plain)
    if value.dtype.kind not in "fiub":
        raise summary.Refused("numpy arrays of %s are not recorded" % value.dtype)
    if torch is not None:
        return _tensor_item(torch, tag, torch.from_numpy(np.ascontiguousarray(value).copy()))
    return _Item(dict({"kind": "tensor"}, **summary.summarize(value, tag)))


def _strict(row: Any) -> Any:
    """NaN and infinities as text, as JSON has none."""
    if isinstance(row, float):
        if math.isnan(row):
            return "nan"
        if row in (float("inf"), float("-inf")):
            return "inf" if row > 0 else "-inf"
        return row
    if isinstance(row, dict):
        return {key: _strict(value) for key, value in row.items()}
    if isinstance(row, list):
        return [_strict(value) for value in row]
    return row


def _group_rank() -> Optional[int]:
    """This process's rank when torch.distributed is initialised."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:
        return None
    return None


def _is_worker() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_loader_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: a query of the device or a pinned allocation would break the capture."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


def _not_compiling() -> bool:
    return False


_compiling: Callable[[], bool] = _not_compiling
_exit_calls: List[Callable[[], None]] = []
_finishing = threading.RLock()


def at_exit(call: Callable[[], None]) -> None:
    """Run `call` when this process ends, before the last flush; an error in it is counted, not raised."""
    _exit_calls.append(call)


def finish() -> None:
    """Everything that is due when the process ends, once; a second caller waits for the first."""
    with _finishing:
        calls = _exit_calls[:]
        del _exit_calls[:]
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: PERF203 - each call on its own
                _recorder.errors += 1
                print("parity: %s: %s" % (type(error).__name__, error), file=sys.stderr)
        if _recorder.owner:
            _recorder.flush()


def mine() -> bool:
    """Whether what is recorded in this process is its own: not so in a forked child that is no rank."""
    return os.getpid() == _recorder.pid and bool(_recorder.owner or not _recorder.is_child)


def _watch_exit() -> None:
    """Finish before `os._exit`, which skips every exit handler; the status stays."""
    original = os._exit

    def _exit(status: int) -> None:
        try:
            if mine() and isinstance(status, int):
                _recorder.ended = {"by": "os._exit", "status": status}
                _finish_in_time()
        except BaseException:  # the job asked to end, and ends
            pass
        original(status)

    _exit.__doc__ = original.__doc__
    os._exit = _exit  # type: ignore[assignment]


def _finish_in_time() -> None:
    """`finish` in a thread of its own: the caller may hold our lock, and the device may never answer."""
    thread = threading.Thread(target=finish, name="parity-finish", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter shuts down
        finish()
        return
    thread.join(EXIT_WAIT_S)
    if thread.is_alive():
        print("parity: the last records did not arrive in %g s; ending without them" % EXIT_WAIT_S, file=sys.stderr)


def _finish_in_child(recorder: Recorder) -> None:
    """A rank that multiprocessing started leaves through os._exit: its finalisers run, atexit does not."""
    from multiprocessing import util

    util.Finalize(recorder, finish, exitpriority=100)


def _after_fork() -> None:
    """A forked child starts empty: what the parent has queued is the parent's to write."""
    global _finishing  # noqa: PLW0603 - the parent may have held it
    _finishing = threading.RLock()
    recorder = _recorder
    recorder.is_child = True
    recorder.owner = None
    recorder.file = None
    recorder.lock = threading.RLock()  # the parent may have held it
    recorder.reset()


def _bind() -> None:
    """Know torch's own answer to 'is this being compiled', as soon as torch is there."""
    global _compiling  # noqa: PLW0603 - bound once, when torch is there
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and hasattr(compiler, "is_compiling"):
        _compiling = compiler.is_compiling


_recorder = Recorder()
if _on:
    import atexit

    _bind()
    atexit.register(finish)
    _watch_exit()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
