"""A tensor is a tensor and a number is a number: no class that stands in for them and does its work, or not, later."""

from __future__ import annotations

import ast

from scripts.judge.change import Change, Hit, below, unparse

NAME = "lying_objects"
WHY = "K3: a lazy subclass computes when the checker looks, or says what the checker wants to hear"

BASES = ("torch.Tensor", "torch.nn.Parameter", "torch.Size", "torch.Generator", "torch.cuda.Event",
         "torch.cuda.Stream", "numpy.ndarray", "builtins.float", "builtins.int", "builtins.str",
         "builtins.list", "builtins.dict", "builtins.type", "builtins.bool", "builtins.tuple",
         "torch.utils._pytree", "torch.fx.Proxy", "torch.optim.Optimizer",
         "torch.optim.optimizer.Optimizer", "builtins.object.__new__", "collections.UserDict",
         "collections.UserList", "torch.overrides.TorchFunctionMode",
         "torch.utils._python_dispatch.TorchDispatchMode", "torch.autograd.graph.saved_tensors_hooks")  # fmt: skip
METHODS = {"__torch_function__", "__torch_dispatch__", "__array__", "__array_function__", "__float__",
           "__int__", "__format__", "__bool__", "__eq__", "__lt__", "__gt__", "__index__", "__hash__",
           "__instancecheck__", "__subclasscheck__", "__new__", "__prepare__", "__init_subclass__",
           "__set_name__", "__call_impl__", "__deepcopy__", "__len__", "__iter__", "__torch_wrap__"}  # fmt: skip
FACTORIES = (
    "torch.Tensor._make_subclass",
    "torch.Tensor._make_wrapper_subclass",
    "torch.Tensor.as_subclass",
    "torch.Tensor.__new__",
    "builtins.type",
)
HONEST = {"__len__", "__iter__", "__new__"}  # of datasets, loaders and named tuples


def check(change: Change) -> list[Hit]:
    hits = change.refuse_references(
        "{name} intercepts every operation",
        "torch.overrides",
        "torch.utils._python_dispatch",
        "torch.library.wrap_triton",
    )
    for file in change.python:
        assert file.after is not None
        for node in file.new(ast.ClassDef):
            for base in [*node.bases, *(k.value for k in node.keywords)]:
                names = [
                    n for n in file.after.names.resolve(base) if below(n, BASES) and not n.startswith("torch.nn.Module")
                ]
                if names:
                    action = (
                        "review"
                        if names[0].endswith(("builtins.dict", "optim.Optimizer", "optimizer.Optimizer"))
                        else "refuse"
                    )
                    hits.append(file.hit(action, node, f"class {node.name} stands in for {names[0]}"))
        for node in file.new(ast.FunctionDef):
            if node.name in METHODS:
                action = "review" if node.name in HONEST else "refuse"
                hits.append(file.hit(action, node, f"{node.name} decides what an object looks like to others"))
        for node in file.new(ast.Call):
            called = file.called(node)
            made = "builtins.type" in called and len(node.args) == 3
            if (
                made
                or any(below(n, FACTORIES[:-1]) for n in called)
                or (isinstance(node.func, ast.Attribute) and node.func.attr in ("as_subclass", "_make_subclass"))
            ):
                hits.append(file.hit("refuse", node, f"{unparse(node)} makes a class or an object of another class"))
    return hits
