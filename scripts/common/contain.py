"""The keeper of one job: starts it, watches it, and leaves nothing of it behind.

A program of its own (`python -I -S contain.py`), so that it is small (a fork of it costs nothing), survives a kill -9
of whatever started it, and ends the job then. One line of JSON on standard input is the plan; standard input then stays
open, and its end means that the launcher is gone. One line of JSON on standard output is the account.

Linux only: it adopts orphans (PR_SET_CHILD_SUBREAPER), so that a daemon which the job forks is found and ended. Wall
time runs from the fork to the end of the last process of the job; work that outlives the main process counts.
Cost: a wake-up every 0.1 s that reads /proc of the job's processes (about 0.1 ms), and one for each write to the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 24, 36
# By number, as linux/capability.h has them: read any file by handle, network, modules, raw I/O, change of root, ptrace,
# mounts, reboot, clock, device nodes.
DROPPED_CAPABILITIES = (2, 12, 16, 17, 18, 19, 21, 22, 25, 27)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1, 32, 4096, 16384, 1 << 18, 2
TICK_S = 0.1
PAGE = resource.getpagesize()
libc = ctypes.CDLL(None, use_errno=True)


class Log:
    """The job's standard output and error: the first and the last bytes are kept, the middle of a flood is dropped."""

    def __init__(self, path: str, limit: int) -> None:
        self.file = Path(path).open("wb")  # noqa: SIM115 - closed by finish()
        self.half = limit // 2
        self.head, self.tail_size, self.dropped, self.total = 0, 0, 0, 0
        self.tail: deque[bytes] = deque()
        self.recent = b""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self.recent = (self.recent + data)[-4096:]
        room = self.half - self.head
        if room > 0:
            self.head += len(data[:room])
            with contextlib.suppress(OSError):  # a full disk ends the log, not the run
                self.file.write(data[:room])
                self.file.flush()
            data = data[room:]
        if not data:
            return
        self.tail.append(data)
        self.tail_size += len(data)
        while self.tail_size - len(self.tail[0]) >= self.half:
            gone = len(self.tail.popleft())
            self.tail_size -= gone
            self.dropped += gone

    def last_line(self) -> str:
        """The last line that says something; what is left of a log on a full disk."""
        lines = self.recent.decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            if self.dropped:
                self.file.write(f"\n[... {self.dropped} bytes of output left out ...]\n".encode())
            self.file.write(b"".join(self.tail))
        with contextlib.suppress(OSError):
            self.file.close()


def isolate(plan: dict[str, Any]) -> dict[str, str]:
    """Put this process, and so the job, into namespaces where the system allows it; say what was reached.

    `network`: only a loopback device. `files`: the `mounts` of the plan are in place, all or none.
    """
    reached = {"network": "open", "files": "open"}
    flags = (CLONE_NEWNET if plan["isolate_network"] else 0) | (CLONE_NEWNS if plan["mounts"] else 0)
    if not flags:
        return reached
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(flags) != 0:
        if libc.unshare(flags | CLONE_NEWUSER) != 0:
            return reached
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
        try:
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError:
            return reached
    if plan["isolate_network"]:
        _loopback_up()
        reached["network"] = "isolated"
    if plan["mounts"]:
        reached["files"] = "isolated" if _mount_all(plan["mounts"]) else "open"
    return reached


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, contextlib.suppress(OSError):
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS


def _mount_all(mounts: list[dict[str, Any]]) -> bool:
    """Bind each `source` over its `target` in order (null: an empty memory file system); all or none."""
    if _mount(None, "/", None, MS_REC | MS_PRIVATE):
        return False
    handles: list[int] = []
    done: list[str] = []
    try:
        # Opened first: a later mount may hide a source.
        handles += [os.open(e["source"], os.O_PATH | os.O_DIRECTORY) if e["source"] else -1 for e in mounts]
        for entry, handle in zip(mounts, handles, strict=True):
            target = entry["target"]
            Path(target).mkdir(parents=True, exist_ok=True)
            failed = (
                _mount("none", target, "tmpfs", 0, "mode=1777")
                if handle < 0
                else _mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)
            )
            if failed:
                raise OSError(ctypes.get_errno(), target)
            done.append(target)
            if entry["read_only"] and _mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY):
                raise OSError(ctypes.get_errno(), target)
    except OSError:
        for target in reversed(done):
            libc.umount2(target.encode(), MNT_DETACH)
        return False
    finally:
        for handle in handles:
            if handle >= 0:
                os.close(handle)
    return True


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> int:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, options)]
    return libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])


def start(plan: dict[str, Any], log_write: int, drop: bool) -> tuple[int, str | None]:
    """Fork and exec the job; `(process id, None)` or `(process id, why it could not start)`.

    drop: take from the job what would let root look out of its namespaces: mounts that it could undo, and the roots,
    memory and open files of processes that kept these capabilities (/proc/<pid>/root).
    """
    status_read, status_write = os.pipe()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.close(status_read)
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != keeper:
                os._exit(1)
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(name, signal.SIG_DFL)
            with contextlib.suppress(OSError):  # the kernel ends the job before anything else when memory runs out
                Path("/proc/self/oom_score_adj").write_text("900")
            for number, bounds in limits(plan).items():
                resource.setrlimit(number, bounds)
            for capability in DROPPED_CAPABILITIES if drop else ():
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to others than root, whom exec strips
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log_write, 1)
            os.dup2(log_write, 2)
            os.chdir(plan["cwd"])
            os.execve(plan["argv"][0], plan["argv"], plan["env"])
        except OSError as error:
            os.write(status_write, f"{error.strerror}: {error.filename or plan['argv'][0]}".encode())
        finally:
            os._exit(127)
    os.close(status_write)
    problem = os.read(status_read, 4096).decode(errors="replace")
    os.close(status_read)
    return child, problem or None


def limits(plan: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """No core files; the sizes that the plan names. Address space is left alone: CUDA reserves terabytes of it."""
    found = {resource.RLIMIT_CORE: (0, 0)}
    for number, key in ((resource.RLIMIT_FSIZE, "file_bytes"), (resource.RLIMIT_AS, "address_bytes")):
        if plan.get(key):
            hard = resource.getrlimit(number)[1]
            value = plan[key] if hard == resource.RLIM_INFINITY else min(plan[key], hard)
            found[number] = (value, value)
    return found


def descendants(root: int) -> list[int]:
    """Every live process below `root`, through /proc/<pid>/task/<tid>/children, or all of /proc without that."""
    found: list[int] = []
    todo = [root]
    while todo:
        pid = todo.pop()
        try:
            threads = [entry.name for entry in os.scandir(f"/proc/{pid}/task")]
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123 - ten times a second
                    below = [int(word) for word in file.read().split()]
            except FileNotFoundError:
                if thread == str(pid) and Path(f"/proc/{pid}").exists():
                    return _descendants_by_scan(root)
                continue
            except OSError:
                continue
            found += below
            todo += below
    return found


def _descendants_by_scan(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in [entry.name for entry in os.scandir("/proc")]:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{name}/stat").read_text()
                parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found, level = [], {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def resident_bytes(pids: list[int]) -> int:
    """Sum of resident sizes; a page that processes share counts in each of them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:  # noqa: PTH123
            total += int(file.read().split()[1]) * PAGE
    return total


class Growing:
    """Files of a folder that only their writer's appending may change: bytes seen once must stay as they were.

    The recorder of the job appends to its records while the job runs. A job that exchanges them, cuts them or writes
    over them afterwards is seen, unless it does so within a tick. Cost: a look into a folder of a few files a tick, and
    the SHA-256 of what is new; one more reading at the end.
    """

    def __init__(self, folder: str | None, pattern: str) -> None:
        self.folder, self.pattern = Path(folder) if folder else None, pattern
        self.seen: dict[Path, tuple[int, int, Any]] = {}
        self.rewritten: set[str] = set()

    def look(self) -> None:
        """Take in what is new; note what was exchanged or became shorter."""
        for path in [*self.seen, *(self.folder.glob(self.pattern) if self.folder else ())]:
            try:
                with path.open("rb") as file:
                    inode, size, digest = self.seen.get(path) or (os.fstat(file.fileno()).st_ino, 0, hashlib.sha256())
                    now = os.fstat(file.fileno())
                    if now.st_ino != inode or now.st_size < size:
                        self.rewritten.add(path.name)
                        continue
                    file.seek(size)
                    while data := file.read(min(1 << 20, now.st_size - size)):
                        digest.update(data)
                        size += len(data)
                    self.seen[path] = (inode, size, digest)
            except OSError:
                self.rewritten.add(path.name)

    def finish(self) -> list[str]:
        """Names of the files that somebody rewrote, once nobody can write any more."""
        self.look()
        for path, (_, size, digest) in self.seen.items():
            with contextlib.suppress(OSError), path.open("rb") as file:
                again = hashlib.sha256()
                while data := file.read(min(1 << 20, size)):
                    again.update(data)
                    size -= len(data)
                if again.digest() != digest.digest():
                    self.rewritten.add(path.name)
        return sorted(self.rewritten)


class Keeper:
    """One run: the job's process, its log, and the reasons for which it may be ended."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.reason: str | None = None
        self.peak = 0
        self.main_status: int | None = None
        self.main_end = 0
        self.signalled = False
        self.reached: dict[str, str] = {}
        self.records = Growing(plan.get("records"), "rank*.jsonl")
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.signalled = True

    def run(self) -> dict[str, Any]:
        plan = self.plan
        log_read, log_write = os.pipe()
        os.set_blocking(log_read, False)
        self.log, self.log_read = Log(plan["log"], plan["log_bytes"]), log_read
        self.watched = _open_pidfds(plan["watch"])
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.reached = isolate(plan)
        started_ns, launched_ns = time.time_ns(), time.monotonic_ns()
        self.child, problem = start(plan, log_write, self.reached["files"] == "isolated")
        os.close(log_write)
        self.deadline = launched_ns + int(plan["timeout_s"] * 1e9)
        self._wait_for_main()
        left = self._wait_for_rest() if self.reason is None else []
        if self.reason or left:
            self._end_all()
        ended_ns = time.monotonic_ns() if (self.reason or left) else self.last_end
        self._drain(until=time.monotonic() + 0.5)
        self.log.finish()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = self.main_status
        return {
            "reason": self.reason,
            "problem": problem,
            "exit_code": os.waitstatus_to_exitcode(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "started_ns": started_ns,
            "launched_ns": launched_ns,
            "ended_ns": ended_ns,
            "main_ended_ns": self.main_end or None,
            "cpu_user_s": used.ru_utime,
            "cpu_system_s": used.ru_stime,
            "peak_rss_bytes": max(self.peak, used.ru_maxrss * 1024),
            "left_behind": left,
            "rewritten": self.records.finish(),
            "last_line": self.log.last_line(),
            "log_dropped": self.log.dropped,
            **self.reached,
        }

    def clear(self) -> None:
        """Delete the run's work folder: nobody else is left to do it. Its mounts, ours alone, would keep it busy."""
        if self.reached.get("files") == "isolated":
            for entry in reversed(self.plan["mounts"]):
                libc.umount2(entry["target"].encode(), MNT_DETACH)
        for path in self.plan["remove"]:
            shutil.rmtree(path, ignore_errors=True)

    def _wait_for_main(self) -> None:
        poller = select.poll()
        main = os.pidfd_open(self.child)
        for handle in (main, self.log_read, 0, *self.watched):
            poller.register(handle, select.POLLIN | select.POLLHUP)
        next_sample = 0.0
        while self.main_status is None and self.reason is None:
            ready = {handle for handle, _ in poller.poll(TICK_S * 1000)}
            if main in ready:
                _, self.main_status = os.waitpid(self.child, 0)
                self.main_end = self.last_end = time.monotonic_ns()
            if self.log_read in ready and not self._drain():
                poller.unregister(self.log_read)
            if ready & {0, *self.watched} or self.signalled:
                self.reason = "abandoned"
            now = time.monotonic()
            if self.main_status is None and now >= next_sample:
                next_sample = now + TICK_S
                self._sample()
        os.close(main)

    def _sample(self) -> None:
        """Memory, number of processes and the time-out; orphans are reaped, so that a fork bomb leaves no zombies."""
        pids = [self.child, *descendants(self.child)]
        others = [pid for pid in descendants(os.getpid()) if pid not in pids] if self._reap_orphans() else []
        resident = resident_bytes(pids + others)
        self.records.look()
        self.peak = max(self.peak, resident)
        if self.plan["memory_bytes"] and resident > self.plan["memory_bytes"]:
            self.reason = "memory"
        elif len(pids) + len(others) > self.plan["processes"]:
            self.reason = "processes"
        elif time.monotonic_ns() > self.deadline:
            self.reason = "timeout"

    def _reap_orphans(self) -> bool:
        """Reap ended orphans; True while the keeper has children other than the job's main process."""
        own = descendants_direct()
        for pid in own:
            if pid != self.child:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return len(own) > 1

    def _wait_for_rest(self) -> list[str]:
        """Wait for what outlives the main process; the names of what is still there after `linger_s`."""
        limit = time.monotonic() + self.plan["linger_s"]
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return []
            if pid:
                self.last_end = time.monotonic_ns()
                continue
            if time.monotonic() > limit or time.monotonic_ns() > self.deadline:
                return [_name(pid) for pid in descendants(os.getpid())]
            if self.signalled or select.select([0, *self.watched], [], [], 0)[0]:
                self.reason = "abandoned"
                return []
            self._drain()
            time.sleep(0.002)

    def _end_all(self) -> None:
        """TERM, a grace, KILL, until no process is left; orphans are adopted, so that none can hide by forking away."""
        self._send(signal.SIGTERM)
        limit = time.monotonic() + self.plan["grace_s"]
        while not self._all_gone():
            if time.monotonic() > limit:
                self._send(signal.SIGKILL)
            self._drain()
            time.sleep(0.01)
        if not self.main_end:
            self.main_end = time.monotonic_ns()

    def _send(self, number: signal.Signals) -> None:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if self.main_status is None:  # the id is ours until we reap it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child, number)

    def _all_gone(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.child:
                self.main_status, self.main_end = status, time.monotonic_ns()

    def _drain(self, until: float | None = None) -> bool:
        """Read what the job printed; False at the end of its output. With `until`, wait for that end so long."""
        while True:
            try:
                data = os.read(self.log_read, 1 << 16)
            except BlockingIOError:
                if until is None or time.monotonic() > until:
                    return True
                select.select([self.log_read], [], [], 0.05)
                continue
            if not data:
                return False
            self.log.add(data)


def descendants_direct() -> list[int]:
    """The keeper's own children: the job and the orphans that it adopted."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return words[:120] or Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "(ended)"


def _open_pidfds(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(PermissionError):
            found.append(os.pidfd_open(pid))
    return found


def main() -> int:
    """Read the plan, keep the job, write the account. Exit code 3: whoever asked is gone, nothing was started."""
    os.setsid()
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: what follows on this pipe is its end and nothing else
        data = os.read(0, 1 << 16)
        if not data:
            return 3
        line += data
    plan = json.loads(line)
    keeper = Keeper(plan)
    try:
        account = keeper.run()
    except ProcessLookupError:
        return 3
    finally:
        if keeper.reason == "abandoned":
            keeper.clear()
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(account).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
