"""Code that cannot be read cannot be judged: nothing is run from strings, nothing is looked up under a built name."""

from __future__ import annotations

import ast
import re

from scripts.judge.change import Change, FileChange, Hit, constant_text, unparse

NAME = "dynamic_code"
WHY = "K35: obfuscated names and generated code hide every other pattern"

RUNS = ("builtins.exec", "builtins.eval", "builtins.compile", "builtins.__import__",
        "importlib.import_module", "importlib.__import__", "importlib.util", "importlib.machinery",
        "importlib.abc", "importlib._bootstrap", "runpy", "code", "codeop", "imp", "zipimport",
        "types.CodeType", "types.FunctionType", "marshal", "builtins.globals", "builtins.locals",
        "builtins.__dict__", "builtins.__loader__", "builtins.__build_class__", "ast.parse",
        "pickle.loads", "dill", "cloudpickle", "pkgutil", "codecs.decode", "operator.attrgetter",
        "operator.methodcaller", "inspect.getattr_static", "builtins.memoryview", "base64", "binascii",
        "zlib", "lzma", "bz2", "torch.package", "torch.jit.CompilationUnit", "builtins.__spec__",
        "pydoc.locate", "ctypes.pythonapi")  # fmt: skip

MODULES = {"os", "sys", "subprocess", "socket", "ctypes", "threading", "builtins", "importlib",
           "posix", "atexit", "marshal", "shutil", "multiprocessing"}  # fmt: skip
DISTINCTIVE = {"system", "popen", "Popen", "fork", "forkpty", "execv", "execve", "execvp", "exit",
               "getframe", "check_output", "check_call", "posix_spawn", "settrace", "setprofile",
               "get_objects", "get_referrers", "CDLL", "PyDLL", "py_object", "start_new_thread",
               "urlopen", "import_module", "getenv", "putenv", "environ", "perf_counter", "monotonic"}  # fmt: skip
# YAML tags that build objects, and the keys by which hydra and its like call what a file names.
DATA_CODE = re.compile(r"!!python|!!js|\b_target_\b|\b(class_path|init_args|callable|entry_?point)\b\s*[\"']?\s*[:=]")


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references("{name} runs or finds code that a reader cannot see", *RUNS)
    for file in change.python:
        hits += [*_attributes(file), *_names(file), *_loose(file)]
    for file in change.files:
        if file.after is None:
            hits += [
                Hit("refuse", file.path, number, f"a data file that names code to run: {text.strip()[:60]}")
                for number, text in sorted(file.patch.added.items())
                if DATA_CODE.search(text)
            ]
    return hits


def _attributes(file: FileChange) -> list[Hit]:
    """`getattr` and its family with a name that is no plain string; dictionaries of modules read by a built key."""
    assert file.after is not None
    hits = []
    for node in file.new(ast.Call):
        called = file.called(node)
        built = len(node.args) < 2 or constant_text(node.args[1]) is None
        if called & {"builtins.getattr", "builtins.setattr", "builtins.delattr"} and built:
            action = "review" if "builtins.getattr" in called and _numbered(node) else "refuse"
            hits.append(file.hit(action, node, f"{unparse(node)}: the name is built, not written"))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("__getattribute__", "__getattr__"):
            hits.append(file.hit("refuse", node, f"{unparse(node)}: looks an attribute up by hand"))
    for node in file.new(ast.Subscript):
        bases = file.after.names.resolve(node.value)
        if any(
            b.endswith("__dict__") or b.startswith(("builtins.vars()", "builtins.globals()", "sys.modules"))
            for b in bases
        ):
            hits.append(file.hit("refuse", node, f"{unparse(node)}: looks a name up in a dictionary of names"))
    return hits


def _loose(file: FileChange) -> list[Hit]:
    """System modules and lookup functions handed around as values, and their attributes on unknown objects."""
    assert file.after is not None
    hits = []
    for name, node in file.references():
        parent = file.after.parents.get(node)
        used = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node)
        lookup = name in ("builtins.getattr", "builtins.setattr", "builtins.delattr", "builtins.vars")
        if (name in MODULES or lookup) and isinstance(node, (ast.Name, ast.Attribute)) and not used:
            hits.append(file.hit("refuse", node, f"{name} is handed around as a value"))
    named = [n for n in file.new(ast.Attribute) if n.attr.lstrip("_") in MODULES | DISTINCTIVE]
    lost = [node for node in named if not file.after.names.resolve(node)]
    hits += [file.hit("refuse", n, f"{unparse(n)}: {n.attr} of an object that cannot be followed") for n in lost]
    return hits


def _numbered(node: ast.Call) -> bool:
    """`getattr(self, f"layer_{i}")`: one of an object's own numbered parts."""
    name = node.args[1] if len(node.args) > 1 else None
    own = isinstance(node.args[0], ast.Name) and node.args[0].id == "self"
    prefix = constant_text(name.values[0]) if isinstance(name, ast.JoinedStr) and name.values else None
    return own and prefix is not None and prefix.endswith("_") and len(prefix) > 3 and not prefix.startswith("_")


def _names(file: FileChange) -> list[Hit]:
    """Special names, bare or as strings, and keys of dictionaries of names."""
    special = {
        "__builtins__",
        "__import__",
        "__loader__",
        "__dict__",
        "__getattribute__",
        "__reduce__",
        "__reduce_ex__",
        "__setstate__",
    }
    hits = []
    for node in file.new(ast.Name, ast.Attribute, ast.Constant):
        word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else node.value
        if isinstance(word, str) and word in special:
            hits.append(file.hit("refuse", node, f"{word}: reaches behind ordinary names"))
    made = {"__getattr__", "__getattribute__", "__reduce__", "__reduce_ex__", "__setstate__", "__class_getitem__"}
    functions = [node for node in file.new(ast.FunctionDef) if node.name in made]
    hits += [file.hit("refuse", n, f"{n.name} decides what a name means while the job runs") for n in functions]
    return hits
