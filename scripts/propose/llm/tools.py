"""What an agent can do: list, read and search the source, read findings, query the trace, try edits, run a quick check.

Everything reads; nothing that a tool does outlives it. Paths stay inside the source tree, SQL is one SELECT over the
trace's Parquet, the quick check runs the patched job for a few steps the way every rule runs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from scripts.common import tree as trees
from scripts.propose.llm import answer as answers
from scripts.propose.llm.ask import out_of_scope, read
from scripts.propose.llm.edits import EditError, apply_edits
from scripts.propose.proposal import Task

ROWS, SQL_SECONDS, CHECK_SECONDS = 100, 20.0, 180.0
HITS = 60


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "minimum": 1}
_EDITS = answers.schema()["properties"]

TOOLS = [
    _tool("list_files", "Files of the source tree, with their number of lines.", {"folder": _TEXT}, []),
    _tool(
        "read_file",
        "Lines of a file, with their numbers.",
        {"path": _TEXT, "first": _NUMBER, "last": _NUMBER},
        ["path"],
    ),
    _tool("search", "Lines that match a regular expression.", {"pattern": _TEXT, "folder": _TEXT}, ["pattern"]),
    _tool("findings", "A finding with all its evidence, or the list of them.", {"id": _TEXT}, []),
    _tool("sql", "One SELECT (DuckDB) over the trace. `SHOW TABLES` lists the tables.", {"query": _TEXT}),
    _tool(
        "try_edits",
        "Whether edits apply and parse. Nothing is kept.",
        {"edits": _EDITS["edits"], "files": _EDITS["files"]},
    ),
    _tool(
        "quick_check",
        "Run the patched job for two steps and say how it ended.",
        {"edits": _EDITS["edits"], "files": _EDITS["files"]},
    ),
    {
        "type": "function",
        "function": {"name": "submit", "description": "The answer. Call it once.", "parameters": answers.schema()},
    },
]


class Toolbox:
    """The tools of one task. `call` gives text for the model and never raises for what a model may do wrong."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._database: Any = None

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The answer of a tool; `error: ...` for what it cannot do."""
        try:
            return str(getattr(self, f"_{name}")(**arguments))
        except EditError as error:
            return f"error: {error}"

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()

    def _list_files(self, folder: str = "") -> str:
        lines = []
        for path in trees.manifest(self.task.tree):
            if path.startswith(folder.strip("/") + "/" if folder.strip("/") else ""):
                text = read(self.task, path)
                lines.append(f"{path} ({'binary' if text is None else str(text.count(chr(10))) + ' lines'})")
        return "\n".join(lines[:400]) or f"error: no files under {folder!r}"

    def _read_file(self, path: str, first: int = 1, last: int = 400) -> str:
        text = read(self.task, path)
        if text is None:
            return f"error: {path}: no such text file in the tree"
        lines = text.split("\n")
        return "\n".join(
            f"{number:5d}  {lines[number - 1]}" for number in range(first, min(last, first + 399, len(lines)) + 1)
        )

    def _search(self, pattern: str, folder: str = "") -> str:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            return f"error: {pattern!r} is no regular expression: {error}"
        hits: list[str] = []
        for path in trees.manifest(self.task.tree):
            text = read(self.task, path) if path.startswith(folder) else None
            for number, line in enumerate((text or "").split("\n"), start=1):
                if len(line) < 2000 and expression.search(line):
                    hits.append(f"{path}:{number}: {line.strip()[:200]}")
                    if len(hits) >= HITS:
                        return "\n".join([*hits, "(more)"])
        return "\n".join(hits) or "no match"

    def _findings(self, id: str = "") -> str:
        if not id:
            return "\n".join(f"{f['id']}: {f['title']}" for f in self.task.findings) or "no findings"
        chosen = [f for f in self.task.findings if f["id"] == id]
        return json.dumps(chosen, indent=1, ensure_ascii=False) if chosen else f"error: no finding {id!r}"

    def _sql(self, query: str) -> str:
        import duckdb

        if self.task.trace is None or not self.task.trace.is_dir():
            return "error: this task has no trace"
        if self._database is None:
            self._database = open_trace(self.task.trace)
        if re.fullmatch(r"\s*show\s+tables\s*;?\s*", query, re.I):
            query = "SELECT table_name FROM information_schema.tables ORDER BY 1"
        try:
            statements = self._database.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                return "error: should be one SELECT"
            timer = threading.Timer(SQL_SECONDS, self._database.interrupt)
            timer.start()
            try:
                cursor = self._database.execute(statements[0])
                names = [column[0] for column in cursor.description]
                rows = cursor.fetchmany(ROWS + 1)
            finally:
                timer.cancel()
        except duckdb.Error as error:
            return f"error: {str(error).splitlines()[0]}"
        lines = ["\t".join(names), *("\t".join(str(value) for value in row) for row in rows[:ROWS])]
        return "\n".join([*lines, *(["(more rows)"] if len(rows) > ROWS else [])])

    def _try_edits(self, edits: list[Any], files: list[Any]) -> str:
        changed = apply_edits(lambda path: read(self.task, path), edits, files)
        outside = out_of_scope(self.task, changed)
        return (
            f"error: {', '.join(outside)}: not editable"
            if outside
            else f"applies and parses: {', '.join(sorted(changed))}"
        )

    def _quick_check(self, edits: list[Any], files: list[Any]) -> str:
        answer = self._try_edits(edits, files)
        env = None if self.task.trace is None else self.task.trace.parent / "env.json"
        if answer.startswith("error") or env is None or not env.is_file():
            return answer + (
                "" if answer.startswith("error") else "; the job was not run: its environment is not known here"
            )
        changed = apply_edits(lambda path: read(self.task, path), edits, files)
        with tempfile.TemporaryDirectory(prefix="wholejob-check-") as folder:
            work = trees.copy(self.task.tree, Path(folder) / "tree")
            for path, text in changed.items():
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_text(text, encoding="utf-8", newline="")
            (Path(folder) / "spec.json").write_text(json.dumps(self.task.spec), encoding="utf-8")
            command = [
                sys.executable,
                "-m",
                "scripts.propose.llm.quick_check",
                "--spec",
                f"{folder}/spec.json",
                "--env",
                str(env),
                "--tree",
                str(work),
                "-o",
                f"{folder}/run",
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                return f"error: the job did not end within {CHECK_SECONDS:.0f} s"
            return (done.stdout.strip() or done.stderr.strip() or "error: no result")[-4000:]


def open_trace(folder: Path) -> Any:
    """A DuckDB connection that sees the Parquet files of `views/` and `events/` and nothing else."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "1GB"})
    for part in ("views", "events"):
        for path in sorted((folder / part).glob("*.parquet")):
            # Views of files that stay readable through the list of folders below.
            name = path.stem if part == "views" else f"events_{path.stem}"
            connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM read_parquet({_quoted(str(path.resolve()))})')
    folders = [_quoted(str((folder / part).resolve()) + "/") for part in ("views", "events")]
    connection.execute(f"SET allowed_directories = [{', '.join(folders)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
