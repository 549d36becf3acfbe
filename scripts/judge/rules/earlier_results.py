"""The job reads its declared inputs and nothing else: no earlier outputs, no answers, no probing of the disk."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, FileChange, Hit, below, unparse

NAME = "earlier_results"
WHY = "J14, J15, J41: the cheapest computation is a copy of an earlier result"

READS = ("builtins.open", "os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.stat", "os.lstat",
         "os.readlink", "os.access", "os.path.exists", "os.path.isfile", "os.path.isdir",
         "os.path.getmtime", "os.path.getsize", "os.path.lexists", "os.path.expanduser",
         "os.path.expandvars", "glob", "fnmatch", "linecache", "fileinput", "tokenize.open",
         "codecs.open", "gzip", "zipfile", "tarfile", "numpy.load", "numpy.loadtxt",
         "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap", "numpy.lib.format", "torch.load",
         "torch.jit.load", "torch.from_file", "torch.UntypedStorage", "pickle.load",
         "pickle.Unpickler", "json.load", "csv.reader", "csv.DictReader", "pandas.read_csv",
         "pandas.read_parquet", "pandas.read_pickle", "pandas.read_json", "pandas.read_table",
         "pyarrow.parquet", "pyarrow.csv", "pyarrow.memory_map", "pyarrow.feather", "safetensors",
         "h5py", "importlib.resources", "torch.distributed.checkpoint", "configparser", "tomllib",
         "yaml", "filecmp", "os.chdir", "os.fchdir", "os.pread", "os.read", "os.sendfile", "xml",
         "dbm", "numpy.DataSource", "torch.utils.model_zoo", "torch.export.load")  # fmt: skip
COPIES = ("shutil", "os.link", "os.symlink", "os.rename", "os.replace", "os.renames",
          "os.copy_file_range", "os.sendfile", "os.remove", "os.unlink", "os.rmdir", "os.removedirs",
          "os.utime", "os.chmod", "os.chown", "os.mkfifo", "os.mknod")  # fmt: skip
METHODS = {"read_text", "read_bytes", "iterdir", "glob", "rglob", "exists", "is_file", "is_dir",
           "hardlink_to", "symlink_to", "rename", "replace_with", "expanduser", "unlink", "readlink",
           "resolve", "samefile", "load_state_dict", "from_pretrained"}  # fmt: skip


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} copies, links or removes files", *COPIES)
    known = {text for file in change.both if file.before for text in _arguments(file)}
    for file in change.python:
        assert file.after is not None
        for node in file.new(ast.Call):
            called = file.called(node)
            reads = sorted(name for name in called if below(name, READS) and "()" not in name)
            if reads and reads[0] == "builtins.open" and _writes(node):
                continue  # the rule disk_cache has it
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if not reads and not (
                method in METHODS and not any(c.startswith("torch.") for c in called if method == "resolve")
            ):
                continue
            target = ast.dump(node.args[0]) if node.args else None
            if reads and target in known:
                hits.append(
                    file.hit("review", node, f"{unparse(node)} reads a file that the job already read, another way")
                )
            else:
                hits.append(file.hit("refuse", node, f"{unparse(node)} reads or probes a file that the job did not"))
        called_at = {id(n.func) for n in file.after.nodes if isinstance(n, ast.Call)}
        for name, reference in file.references():
            loose = isinstance(reference, (ast.Name, ast.Attribute)) and id(reference) not in called_at
            if loose and below(name, READS) and "()" not in name:
                hits.append(file.hit("refuse", reference, f"{name} is passed around under another name"))
    return hits


def _writes(node: ast.Call) -> bool:
    mode = node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "mode"), None)
    return (
        isinstance(mode, ast.Constant)
        and isinstance(mode.value, str)
        and set(mode.value) & set("wax+") != set()
        and "r" not in mode.value
    )


def _arguments(file: FileChange) -> set[str]:
    """First arguments of the calls that read files before the patch."""
    assert file.before is not None
    calls = [n for n in file.before.nodes if isinstance(n, ast.Call) and n.args]
    return {
        ast.dump(n.args[0])
        for n in calls
        if any(below(name, READS) for name in file.before.names.resolve(n.func)) and not _writes(n)
    }
