"""Nothing is left on disk for a later run, beyond what the job wrote already."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, unparse
from scripts.judge.rules.earlier_results import _writes

NAME = "disk_cache"
WHY = "J11, J23: a cache that outlives the process makes the second run fast, and the baseline's too, or slower"

CACHES = ("diskcache", "joblib.Memory", "shelve", "dbm", "sqlite3", "tempfile", "zarr", "lmdb",
          "cachetools", "platformdirs", "appdirs", "torch._inductor.config.fx_graph_remote_cache",
          "torch.compiler.save_cache_artifacts", "torch.compiler.load_cache_artifacts",
          "multiprocessing.shared_memory", "pathlib.Path.home", "os.path.expanduser",
          "torch.utils.cpp_extension.get_default_build_root")  # fmt: skip
WRITES = ("torch.save", "torch.jit.save", "torch.export.save", "numpy.save", "numpy.savez",
          "numpy.savez_compressed", "numpy.savetxt", "numpy.memmap", "numpy.lib.format.open_memmap",
          "pickle.dump", "json.dump", "csv.writer", "os.makedirs", "os.mkdir",
          "safetensors.torch.save_file", "os.open", "os.mkfifo", "pandas.to_parquet", "joblib.dump")  # fmt: skip
METHODS = {"write_text", "write_bytes", "mkdir", "touch", "tofile", "to_parquet", "to_csv",
           "to_pickle", "save_pretrained", "flush_cache", "save_to_disk", "numpy_save"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    leave = "side_effect" if change.allows("disk_cache") else "refuse"
    hits = change.refuse_references(
        "{name} keeps files outside the job's output; the contract must allow `disk_cache`", *CACHES, action=leave
    )
    known = {text for file in change.both for text in _targets(file)}
    for file in change.python:
        for node in file.new(ast.Call):
            writes = bool(file.called(node) & set(WRITES)) or _opens(file, node)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if not writes and method not in METHODS:
                continue
            targets = {ast.dump(arg) for arg in node.args[:2]}
            if writes and targets & known:
                hits.append(
                    file.hit("review", node, f"{unparse(node)} writes a file that the job already wrote, another way")
                )
            else:
                hits.append(file.hit(leave, node, f"{unparse(node)} writes a file that the job did not"))
    return hits


def _opens(file: FileChange, node: ast.Call) -> bool:
    return "builtins.open" in file.called(node) and _writes(node)


def _targets(file: FileChange) -> set[str]:
    """Arguments of calls that wrote files before the patch."""
    assert file.before is not None
    found = set()
    for node in file.before.nodes:
        if isinstance(node, ast.Call):
            called = file.before.names.resolve(node.func)
            if called & set(WRITES) or ("builtins.open" in called and _writes(node)):
                found |= {ast.dump(arg) for arg in node.args[:2] if not isinstance(arg, ast.Constant)}
    return found
