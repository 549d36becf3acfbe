"""Which of the wanted lines of which files ran: the evidence that a patch was not inert.

Limited to the wanted files: `sys.monitoring` from Python 3.12 on (lines of other files cost nothing), `sys.settrace`
before (a call into another file costs one look-up). It takes itself off when every wanted line was hit. Lines that
dynamo traces into a compiled graph count as run. Hits of child processes (DataLoader workers) count too: each hit is
appended to one file, which the process that writes the ledger reads at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import Any, Dict, List, Optional, Set, Tuple

SCHEMA = "parity/coverage@1"
PART = "coverage.part"

_cover: Optional["Cover"] = None


def start(options: Any) -> None:
    """Begin watching, at interpreter start."""
    global _cover  # noqa: PLW0603 - one a process
    from parity import recorder

    _cover = Cover(read_wanted(options.cover), options.tree or os.getcwd(), recorder.folder())
    _cover.watch()


def watch_dynamo(module: Any) -> None:
    """Called when dynamo's tracer has been imported: a line that it traces is a line that runs."""
    translator = module.InstructionTranslatorBase
    original = translator.starts_line

    def starts_line(self: Any, lineno: int) -> Any:
        if _cover is not None:
            _cover.hit(self.f_code.co_filename, lineno)
        return original(self, lineno)

    translator.starts_line = starts_line


def write() -> None:
    """Write `coverage.json`, at the end of a process that writes a ledger."""
    from parity import environment, recorder

    if _cover is not None:
        _cover.stop()
        _cover.write(recorder._recorder.output("coverage.json"))
        if environment._world_size() == 1:  # other ranks may still read it
            with contextlib.suppress(OSError):
                os.remove(_cover.part)


def read_wanted(path: str) -> Dict[str, List[int]]:
    """`{path: [lines]}` from a JSON file, or from its `changed_lines`."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    wanted = document.get("changed_lines", document)
    return {name: [int(line) for line in lines] for name, lines in wanted.items() if name != "schema"}


def executable_lines(path: str) -> Set[int]:
    """Lines of a Python file that hold code; empty where it does not parse."""
    try:
        with open(path, "rb") as file:
            todo = [compile(file.read(), path, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return set()
    found: Set[int] = set()
    while todo:
        code = todo.pop()
        found |= _lines(code)
        todo += [constant for constant in code.co_consts if hasattr(constant, "co_code")]
    return found


def _lines(code: Any) -> Set[int]:
    if hasattr(code, "co_lines"):
        return {line for _, _, line in code.co_lines() if line}
    import dis

    return {line for _, line in dis.findlinestarts(code)}


class Cover:
    """Wanted and seen lines, by real path."""

    def __init__(self, wanted: Dict[str, List[int]], tree: str, folder: str) -> None:
        self.part = os.path.join(folder, PART)
        self.names: Dict[str, str] = {}
        self.wanted: Dict[str, Set[int]] = {}
        for name, lines in wanted.items():
            path = os.path.realpath(os.path.join(tree, name))
            self.names[path] = name
            self.wanted[path] = set(lines) & executable_lines(path)
        self.left: Dict[str, Set[int]] = {path: set(lines) for path, lines in self.wanted.items() if lines}
        self.real: Dict[str, Optional[str]] = {}  # co_filename -> wanted real path
        self.tool: Optional[int] = None
        self.lock = threading.Lock()

    def watch(self) -> None:
        if not self.left:
            return
        os.makedirs(os.path.dirname(self.part), exist_ok=True)
        if hasattr(sys, "monitoring"):
            self._monitor()
        else:
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def stop(self) -> None:
        if self.tool is not None:
            sys.monitoring.set_events(self.tool, 0)  # type: ignore[attr-defined]
            sys.monitoring.free_tool_id(self.tool)  # type: ignore[attr-defined]
            self.tool = None
        elif sys.gettrace() is not None and getattr(sys.gettrace(), "__self__", None) is self:
            threading.settrace(None)  # type: ignore[arg-type]
            sys.settrace(None)

    def hit(self, filename: str, line: int) -> None:
        """A line ran (or was traced into a graph)."""
        path = self._path(filename)
        left = self.left.get(path) if path is not None else None
        if path is None or not left or line not in left:
            return
        with self.lock:
            left.discard(line)
            if not left:
                self.left.pop(path, None)
        with contextlib.suppress(OSError), open(self.part, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.names[path], line]) + "\n")
        if not self.left and self.tool is None:
            self.stop()

    def write(self, path: str) -> None:
        hits: Dict[str, Set[int]] = {}
        for name, line in self._parts():
            hits.setdefault(name, set()).add(line)
        files = {}
        for real, name in self.names.items():
            wanted = self.wanted[real]
            files[name] = {"wanted": sorted(wanted), "hit": sorted(hits.get(name, set()) & wanted)}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, "files": files}, file, indent=1)
            file.write("\n")

    def _parts(self) -> List[Tuple[str, int]]:
        found = []
        try:
            with open(self.part, encoding="utf-8") as file:
                for line in file:
                    try:
                        name, number = json.loads(line)
                    except ValueError:  # a torn line
                        continue
                    found.append((name, number))
        except OSError:
            pass
        return found

    def _path(self, filename: str) -> Optional[str]:
        try:
            return self.real[filename]
        except KeyError:
            real = os.path.realpath(filename)
            found = self.real[filename] = real if real in self.wanted else None
            return found

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        if self._path(frame.f_code.co_filename) not in self.left:
            return None
        return self._local

    def _local(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.hit(frame.f_code.co_filename, frame.f_lineno)
        return self._local

    def _monitor(self) -> None:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        for tool in (4, 3, monitoring.COVERAGE_ID):
            try:
                monitoring.use_tool_id(tool, "parity")
            except ValueError:  # somebody else's
                continue
            self.tool = tool
            break
        else:
            return

        def line(code: Any, number: int) -> Any:
            self.hit(code.co_filename, number)
            return monitoring.DISABLE  # each line once

        monitoring.register_callback(self.tool, monitoring.events.LINE, line)
        monitoring.set_events(self.tool, monitoring.events.LINE)
