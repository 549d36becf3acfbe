"""Hand-written attention (scores, mask, softmax, dropout, times values) becomes `F.scaled_dot_product_attention`.

The chain is followed backwards from the product with the values through single assignments, so it may be one expression
or ten lines. Refused where the weights are used for anything else: the fused kernels never materialise them.
"""

# Nodes of libcst are told apart by their shape, which mypy cannot follow.
# mypy: disable-error-code="attr-defined,union-attr,index,arg-type,call-arg,assignment,misc"
# mypy: disable-error-code="return-value,str-unpack,list-item"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst

from scripts.propose.codemod import (
    File,
    Refusal,
    assigned,
    attribute_values,
    bare,
    blocks,
    call,
    code,
    dotted,
    files,
    is_true,
    keyword,
    loads,
    number,
    positional,
    replaced,
    string,
    walk,
    writes,
)

FINDINGS = ["attention_handwritten", "attention_math_path"]
TITLE = "Use scaled_dot_product_attention"
HYPOTHESIS = (
    "The attention weights are written to memory and read back for the mask, the softmax, the dropout and the product; "
    "one fused call keeps them in cache or registers."
)
RISK = "Sums are taken in another order, so values agree to rounding only; rows that are masked out whole may differ."
CLASSES = ["backend", "python"]
UNTESTED = ["attention dropout above 0 draws its random numbers in another order on a GPU"]

FUNCTIONAL = "torch.nn.functional"
CASTS = {"to", "type_as", "float", "half", "bfloat16", "type", "contiguous", "double"}
RESHAPES = {"view", "reshape", "unsqueeze", "expand", "to", "bool", "expand_as", "repeat", "squeeze", "detach", "type"}


def fix(tree: Path, finding: dict[str, Any], spec: dict[str, Any]) -> dict[str, str]:
    """Edits `{path: new text}`; every hand-written attention of the first file that has one is replaced."""
    refusals = []
    for file in files(tree, finding, spec, "softmax", "Softmax"):
        try:
            module = _rewrite(file)
        except Refusal as refusal:
            refusals.append(f"{file.path}: {refusal}")
            continue
        if module is not None:
            return {file.path: module.code}
    raise Refusal("; ".join(refusals) or "no softmax of a product that is multiplied by values")


@dataclass
class Attention:
    """What the chain was made of; `removed` are the statements that it replaces, besides `last`."""

    values: cst.BaseExpression
    last: cst.BaseStatement
    product: cst.BaseExpression
    removed: list[cst.BaseStatement] = field(default_factory=list)
    query: str = ""
    key: str = ""
    scale: list[str] = field(default_factory=list)
    masks: list[tuple[str, str, bool]] = field(default_factory=list)  # keep|add, expression, causal
    dropout: str | None = None
    transposed: bool = False  # (batch, length, heads, size) layout, from einsum
    softmax: bool = False


@dataclass
class Scope:
    """Where a chain is looked for: a statement list in a function in a class in a file."""

    file: File
    function: cst.FunctionDef
    class_: cst.ClassDef | None
    block: Sequence[cst.BaseStatement]


def _rewrite(file: File) -> cst.Module | None:
    changes: dict[cst.CSTNode, Any] = {}
    why = None
    for function, around in file.functions:
        class_ = next((c for c in reversed(around) if isinstance(c, cst.ClassDef)), None)
        for block in blocks(function):
            scope = Scope(file, function, class_, block)
            for index, statement in enumerate(block):
                if statement in changes or not isinstance(statement, cst.SimpleStatementLine):
                    continue
                try:
                    found = _attention(scope, index)
                    if found:
                        changes |= _changes(scope, found)
                except Refusal as refusal:
                    why = refusal
    if not changes:
        if why:
            raise why
        return None
    return replaced(file.module, changes)


def _attention(scope: Scope, index: int) -> Attention | None:
    statement = scope.block[index]
    for node in walk(statement):
        for weights, values, transposed in _products(scope.file, node):
            found = Attention(values, statement, node, transposed=transposed)
            if _weights(scope, weights, index, found):
                return found
    return None


def _products(file: File, node: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.BaseExpression, bool]]:
    """(weights, values, layout is b l h d) for each way in which the node is a batched product."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return [(node.left, node.right, False)]
    if not isinstance(node, cst.Call):
        return []
    name, arguments = file.qualified(node.func), positional(node)
    if name in ("torch.matmul", "torch.bmm") and len(arguments) == 2:
        return [(arguments[0], arguments[1], False)]
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("matmul", "bmm") and len(arguments) == 1:
        return [(node.func.value, arguments[0], False)]
    if name == "torch.einsum" and len(arguments) == 3:
        kind = _einsum_values(string(arguments[0]) or "")
        if kind is not None:
            return [(arguments[1], arguments[2], kind)]
    return []


def _einsum_values(equation: str) -> bool | None:
    """`bhij,bhjd->bhid` gives False, `bhij,bjhd->bihd` True (lengths before heads), anything else None."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if not arrow or len(parts) != 2 or len(parts[0]) != 4 or len(parts[1]) != 4:
        return None
    b, h, i, j = parts[0]
    d = (set(parts[1]) - {b, h, j}).pop() if len(set(parts[1]) - {b, h, j}) == 1 else ""
    if parts[1] == b + h + j + d and output == b + h + i + d:
        return False
    if parts[1] == b + j + h + d and output == b + i + h + d:
        return True
    return None


def _definition(scope: Scope, name: str, before: int) -> tuple[int, cst.BaseStatement, cst.BaseExpression] | None:
    """The last statement of the block that gives the name its value, with that value; None where that is no plain
    line.
    """
    for index in range(before - 1, -1, -1):
        statement = scope.block[index]
        pair = assigned(statement)
        if pair and pair[0] == name:
            return index, statement, pair[1]
        made = call(statement)
        method = made.func.attr.value if made and isinstance(made.func, cst.Attribute) else ""
        if made and method.endswith("_") and not method.endswith("__") and dotted(made.func.value) == name:
            return index, statement, made
        if isinstance(statement, cst.If) and name in writes(statement):
            value = _conditional(statement, name)
            return None if value is None else (index, statement, value)
        if name in writes(statement):
            return None
    return None


def _conditional(statement: cst.If, name: str) -> cst.BaseExpression | None:
    """`if mask is not None: x = f(x)` as `(f(x)) if mask is not None else x`; None for any other shape."""
    body = statement.body.body
    if statement.orelse is not None or len(body) != 1 or not isinstance(body[0], cst.SimpleStatementLine):
        return None
    pair = assigned(body[0])
    if not pair or pair[0] != name:
        return None
    return cst.IfExp(test=statement.test, body=pair[1], orelse=cst.Name(name))


def _weights(scope: Scope, node: cst.BaseExpression, index: int, found: Attention) -> bool:
    """Follow the chain backwards from the weights to the query-key product; fills `found`, True when it arrives."""
    node = bare(node)
    if isinstance(node, cst.Name):
        defined = _definition(scope, node.value, index)
        if defined is None:
            return False
        at, statement, value = defined
        mark = len(found.removed)
        found.removed.append(statement)
        if _weights(scope, value, at, found):
            return True
        del found.removed[mark:]
        return False
    if isinstance(node, cst.Call):
        return _weights_call(scope, node, index, found)
    if isinstance(node, cst.IfExp) and found.softmax:
        return _weights_conditional(scope, node, index, found)
    if isinstance(node, cst.BinaryOperation):
        return _weights_operation(scope, node, index, found)
    return False


def _weights_call(scope: Scope, node: cst.Call, index: int, found: Attention) -> bool:
    file, arguments = scope.file, positional(node)
    name = file.qualified(node.func) or ""
    method = node.func.attr.value if isinstance(node.func, cst.Attribute) else None
    if not found.softmax:
        operand = _softmax_operand(scope, node)
        if operand is not None:
            found.softmax = True
            if _weights(scope, operand, index, found):
                return True
            found.softmax = False
            return False
        dropout = _dropout(scope, node)
        if dropout is not None and found.dropout is None:
            found.dropout = dropout
            if _weights(scope, arguments[0], index, found):
                return True
            found.dropout = None
            return False
    if method in CASTS and not name.startswith("torch."):
        return _weights(scope, node.func.value, index, found)
    if not found.softmax:
        return False
    masked = _masking(file, node)
    if masked is not None:
        inner, keep, fill = masked
        value = _fill(fill)
        if value is None:
            return False
        form = _keep(scope, keep[1], index, negate=not keep[0])
        found.masks.append(form)
        if not form[2] and value != "-inf":
            raise Refusal(f"a mask that is not provably causal is filled with {code(fill)}, not with -inf")
        if _weights(scope, inner, index, found):
            return True
        found.masks.pop()
        return False
    return _scores(scope, node, found)


def _weights_conditional(scope: Scope, node: cst.IfExp, index: int, found: Attention) -> bool:
    """`scores + mask if mask is not None else scores`: the fused call takes None as no mask."""
    test = bare(node.test)
    if not (isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, cst.IsNot)):
        return False
    subject = test.left
    before = len(found.masks)
    if not _weights(scope, node.body, index, found) or len(found.masks) <= before:
        return False
    kind, expression, _ = found.masks[before]
    text = code(subject)
    if expression != text:
        expression = f"({expression}) if {text} is not None else None"
    found.masks[before] = (kind, expression, False)
    return True


def _weights_operation(scope: Scope, node: cst.BinaryOperation, index: int, found: Attention) -> bool:
    if not found.softmax:
        return False
    if isinstance(node.operator, cst.MatrixMultiply):
        return _scores(scope, node, found)
    if isinstance(node.operator, cst.Divide):
        found.scale.append(f"/{code(node.right)}")
        if _weights(scope, node.left, index, found):
            return True
        found.scale.pop()
        return False
    for inner, other in ((node.left, node.right), (node.right, node.left)):
        if not _could_be_scores(scope, inner, index):
            continue
        if isinstance(node.operator, cst.Multiply):
            found.scale.append(f"*{code(other)}")
            if _weights(scope, inner, index, found):
                return True
            found.scale.pop()
        elif isinstance(node.operator, cst.Add):
            found.masks.append(_additive(scope, other, index))
            if _weights(scope, inner, index, found):
                return True
            found.masks.pop()
    return False


def _could_be_scores(scope: Scope, node: cst.BaseExpression, index: int) -> bool:
    """A cheap look ahead, so that a scale is not taken for the scores: some product must be below."""
    node = bare(node)
    if any(_products(scope.file, part) or _einsum_scores(scope.file, part) for part in walk(node)):
        return True
    names = [node.value] if isinstance(node, cst.Name) else []
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        names += [dotted(node.func.value) or ""]
    for name in names:
        defined = _definition(scope, name, index)
        if defined is not None and _could_be_scores(scope, defined[2], defined[0]):
            return True
    return any(
        _could_be_scores(scope, part, index)
        for part in node.children
        if isinstance(part, cst.BaseExpression) and not isinstance(node, cst.Name)
    )


def _softmax_operand(scope: Scope, node: cst.Call) -> cst.BaseExpression | None:
    """What the softmax over the last dimension is taken of, else None."""
    name, arguments = scope.file.qualified(node.func) or "", positional(node)
    method = node.func.attr.value if isinstance(node.func, cst.Attribute) else None
    if name in (f"{FUNCTIONAL}.softmax", "torch.softmax") and arguments:
        operand, rest = arguments[0], arguments[1:]
    elif name.startswith("self.") and len(arguments) == 1 and scope.class_:
        made = attribute_values(scope.class_, name[5:])
        if (
            len(made) != 1
            or not isinstance(made[0], cst.Call)
            or scope.file.qualified(made[0].func) != "torch.nn.Softmax"
        ):
            return None
        operand, rest, node = arguments[0], positional(made[0]), made[0]
    elif method == "softmax":
        operand, rest = node.func.value, arguments
    elif isinstance(node.func, cst.Call) and scope.file.qualified(node.func.func) == "torch.nn.Softmax" and arguments:
        operand, rest, node = arguments[0], positional(node.func), node.func
    else:
        return None
    dim = keyword(node, "dim")
    value = number(dim.value if dim else rest[0] if rest else None)
    if value not in (-1, 3):
        raise Refusal("the softmax is not over the last dimension")
    return operand


def _dropout(scope: Scope, node: cst.Call) -> str | None:
    """The expression for `dropout_p`, when the call is a dropout; else None."""
    name, arguments = scope.file.qualified(node.func) or "", positional(node)
    if not arguments:
        return None
    if name == f"{FUNCTIONAL}.dropout":
        p = keyword(node, "p") or (cst.Arg(arguments[1]) if len(arguments) > 1 else None)
        training = keyword(node, "training")
        probability = code(p.value) if p else "0.5"
        if training is None or is_true(training.value):
            return probability
        return f"{probability} if {code(training.value)} else 0.0"
    if name.startswith("self.") and scope.class_:
        made = attribute_values(scope.class_, name[5:])
        kinds = {scope.file.qualified(m.func) if isinstance(m, cst.Call) else None for m in made}
        if kinds == {"torch.nn.Dropout"}:
            return f"{name}.p if self.training else 0.0"
        if kinds == {"torch.nn.Identity"}:
            return "0.0"
    return None


def _masking(file: File, node: cst.Call) -> tuple[Any, tuple[bool, cst.BaseExpression], cst.BaseExpression] | None:
    """(scores, (mask says keep, mask), fill) of `masked_fill` and `where`."""
    arguments = positional(node)
    method = node.func.attr.value if isinstance(node.func, cst.Attribute) else None
    name = file.qualified(node.func)
    if name in ("torch.masked_fill",) and len(arguments) == 3:
        return arguments[0], (False, arguments[1]), arguments[2]
    if method in ("masked_fill", "masked_fill_"):
        fill = keyword(node, "value")
        if len(arguments) == 2 or (len(arguments) == 1 and fill):
            return node.func.value, (False, arguments[0]), arguments[1] if len(arguments) == 2 else fill.value  # type: ignore
    if name == "torch.where" and len(arguments) == 3:
        if _fill(arguments[2]) is not None:
            return arguments[1], (True, arguments[0]), arguments[2]
        if _fill(arguments[1]) is not None:
            return arguments[2], (False, arguments[0]), arguments[1]
    return None


def _fill(node: cst.BaseExpression) -> str | None:
    """`-inf`, or `low` for a very negative number; None for anything else."""
    text = code(node).replace('"', "'").replace(" ", "")
    if text in ("float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf", "float('-Inf')", "-inf"):
        return "-inf"
    value = number(node)
    if (value is not None and value <= -1e4) or ("finfo(" in text and text.endswith(".min")):
        return "low"
    return None


def _keep(scope: Scope, node: cst.BaseExpression, index: int, negate: bool) -> tuple[str, str, bool]:
    """The mask as `(\"keep\", boolean expression that is True where a key counts, provably causal)`."""
    node = bare(node)
    causal = _triangle(scope, node, index) == ("above" if negate else "below")
    if not negate:
        return "keep", code(node), causal
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        return "keep", code(node.expression), causal
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "logical_not":
        return "keep", code(node.func.value), causal
    if (
        isinstance(node, cst.Comparison)
        and len(node.comparisons) == 1
        and isinstance(node.comparisons[0].operator, cst.Equal)
    ) and number(node.comparisons[0].comparator) == 0:
        return "keep", f"{code(node.left)} != 0", causal
    return "keep", f"~({code(node)})", causal


def _additive(scope: Scope, node: cst.BaseExpression, index: int) -> tuple[str, str, bool]:
    return "add", code(node), _triangle(scope, bare(node), index) == "additive"


def _triangle(scope: Scope, node: cst.BaseExpression, index: int, depth: int = 0) -> str | None:
    """What is True (or not 0) in a square mask: `below` the diagonal with it, `above` it, or `additive` -inf above;
    else None.
    """
    node = bare(node)
    if depth > 8:
        return None
    again = depth + 1
    if isinstance(node, cst.Name):
        defined = _definition(scope, node.value, index)
        return _triangle(scope, defined[2], defined[0], again) if defined else None
    if isinstance(node, cst.Attribute) and dotted(node.value) == "self" and scope.class_:
        kinds = {_triangle(scope, value, 0, again) for value in attribute_values(scope.class_, node.attr.value)}
        return kinds.pop() if len(kinds) == 1 else None
    if isinstance(node, cst.Subscript):
        return _triangle(scope, node.value, index, again) if _square(node) else None
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
        return _OPPOSITE.get(_triangle(scope, node.expression, index, again) or "")
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        inner = _triangle(scope, node.left, index, again)
        operator, value = node.comparisons[0].operator, number(node.comparisons[0].comparator)
        if (isinstance(operator, cst.Equal) and value == 0) or (isinstance(operator, cst.NotEqual) and value == 1):
            return _OPPOSITE.get(inner or "")
        if (isinstance(operator, (cst.NotEqual, cst.GreaterThan)) and value == 0) or (
            isinstance(operator, cst.Equal) and value == 1
        ):
            return inner if inner in _OPPOSITE else None
        return None
    if isinstance(node, cst.Call):
        return _triangle_call(scope, node, index, again)
    return None


_OPPOSITE = {"below": "above", "above": "below"}


def _triangle_call(scope: Scope, node: cst.Call, index: int, depth: int) -> str | None:
    name, arguments = scope.file.qualified(node.func) or "", positional(node)
    method = node.func.attr.value if isinstance(node.func, cst.Attribute) else None
    if name in ("torch.tril", "torch.triu") and arguments:
        which, core, rest = name[-4:], arguments[0], arguments[1:]
    elif method in ("tril", "triu", "tril_", "triu_"):
        which, core, rest = method[:4], node.func.value, arguments
    elif method == "logical_not":
        return _OPPOSITE.get(_triangle(scope, node.func.value, index, depth) or "")
    elif method in RESHAPES and not name.startswith("torch."):
        return _triangle(scope, node.func.value, index, depth)
    elif isinstance(node.func, cst.Name):
        return _triangle_function(scope, node.func.value, depth)
    else:
        return None
    diagonal = keyword(node, "diagonal")
    offset = number(diagonal.value if diagonal else rest[0] if rest else cst.Integer("0"))
    filled = _constant_square(scope.file, core)
    if filled == "ones" and which == "tril" and offset == 0:
        return "below"
    if filled == "ones" and which == "triu" and offset == 1:
        return "above"
    if filled == "-inf" and which == "triu" and offset == 1:
        return "additive"
    return None


def _triangle_function(scope: Scope, name: str, depth: int) -> str | None:
    """A function of the same file that builds the mask in straight lines."""
    for function, around in scope.file.functions:
        if function.name.value == name and not around and isinstance(function.body, cst.IndentedBlock):
            block = function.body.body
            last = block[-1]
            if (
                isinstance(last, cst.SimpleStatementLine)
                and isinstance(last.body[0], cst.Return)
                and last.body[0].value
            ):
                inner = Scope(scope.file, function, None, block)
                return _triangle(inner, last.body[0].value, len(block) - 1, depth)
    return None


def _constant_square(file: File, node: cst.BaseExpression) -> str | None:
    """`ones` or `-inf` of a constructor whose last two sizes are the same expression; else None."""
    node = bare(node)
    if not isinstance(node, cst.Call):
        return None
    name, arguments = file.qualified(node.func), positional(node)
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("to", "bool", "view"):
        return _constant_square(file, node.func.value)
    sizes = arguments
    if arguments and isinstance(arguments[0], (cst.Tuple, cst.List)):
        sizes = [element.value for element in arguments[0].elements]
    elif name == "torch.full":
        return None
    if len(sizes) < 2 or code(sizes[-1]) != code(sizes[-2]):
        return None
    if name == "torch.ones":
        return "ones"
    if name == "torch.full":
        fill = keyword(node, "fill_value")
        value = fill.value if fill else arguments[1] if len(arguments) > 1 else None
        if value is not None and _fill(value) == "-inf":
            return "-inf"
        if is_true(value) or number(value) == 1:
            return "ones"
    return None


def _square(node: cst.Subscript) -> bool:
    """Whether the subscript keeps a square: new axes, full slices, and two equal `:T` at the end."""
    parts = [element.slice for element in node.slice]
    ends = []
    for part in parts:
        if isinstance(part, cst.Index):
            if dotted(part.value) != "None" and not isinstance(part.value, cst.Ellipsis):
                return False
        elif isinstance(part, cst.Slice):
            if (part.lower is not None and number(part.lower) != 0) or part.step is not None:
                return False
            ends.append(code(part.upper) if part.upper else "")
    return not ends or all(not end for end in ends) or (len(ends) >= 2 and ends[-1] == ends[-2] and not any(ends[:-2]))


def _einsum_scores(file: File, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression, bool] | None:
    """(query, key, layout is b l h d) of `bhid,bhjd->bhij` or `bihd,bjhd->bhij`."""
    if not isinstance(node, cst.Call) or file.qualified(node.func) != "torch.einsum":
        return None
    arguments = positional(node)
    equation = string(arguments[0]) if arguments else None
    if equation is None or len(arguments) != 3:
        return None
    inputs, _, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if len(parts) != 2 or len(output) != 4 or any(len(part) != 4 for part in parts):
        return None
    b, h, i, j = output
    common = set(parts[0]) & set(parts[1]) - {b, h}
    if len(common) != 1:
        return None
    d = common.pop()
    if parts == [b + h + i + d, b + h + j + d]:
        return arguments[1], arguments[2], False
    if parts == [b + i + h + d, b + j + h + d]:
        return arguments[1], arguments[2], True
    return None


def _scores(scope: Scope, node: cst.BaseExpression, found: Attention) -> bool:
    """The query-key product, at the end of the chain."""
    einsum = _einsum_scores(scope.file, node)
    if einsum is not None:
        query, key, transposed = einsum
        if transposed != found.transposed:
            return False
        found.query, found.key = code(query), code(key)
        return True
    for query, key, _ in _products(scope.file, node):
        if found.transposed:
            return False
        found.query, found.key = code(query), _untransposed(key)
        return True
    return False


def _untransposed(key: cst.BaseExpression) -> str:
    """`k` of `k.transpose(-2, -1)`; for anything else its transposition, which is right whatever it is."""
    key = bare(key)
    if isinstance(key, cst.Attribute) and key.attr.value == "mT":
        return code(key.value)
    if isinstance(key, cst.Call) and isinstance(key.func, cst.Attribute):
        method, axes = key.func.attr.value, [number(a) for a in positional(key)]
        if method in ("transpose", "swapaxes") and axes in ([-2, -1], [-1, -2], [2, 3], [3, 2]):
            return code(key.func.value)
        if method == "permute" and axes == [0, 1, 3, 2]:
            return code(key.func.value)
    text = code(key)
    simple = isinstance(key, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
    return f"{text if simple else f'({text})'}.transpose(-2, -1)"


def _changes(scope: Scope, found: Attention) -> dict[cst.CSTNode, Any]:
    """Replacements by identity: the product by the call, the chain's statements by nothing, their comments kept."""
    _only_used_here(scope, found)
    text = _call_text(scope.file, found)
    expression = cst.parse_expression(text, scope.file.module.config_for_parsing)
    gone = [*found.removed, *_dead_masks(scope, found, expression)]
    order = {statement: position for position, statement in enumerate(scope.block)}
    gone.sort(key=lambda statement: order[statement])
    leading = [line for statement in gone for line in _comments(statement)]
    if gone and gone[0].leading_lines and gone[0].leading_lines[0].comment is None:
        leading.insert(0, gone[0].leading_lines[0])
    changes: dict[cst.CSTNode, Any] = {statement: cst.RemoveFromParent() for statement in gone}
    changes[found.product] = expression
    if leading:
        changes[found.last] = lambda updated: updated.with_changes(leading_lines=[*leading, *updated.leading_lines])
    return changes


def _comments(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    """Comment lines above a removed statement; those that stand on its own line go with it."""
    return [line for line in getattr(statement, "leading_lines", []) if line.comment is not None]


def _only_used_here(scope: Scope, found: Attention) -> None:
    """Raise Refusal where a value of the chain is read by anything but the chain."""
    chain = {id(statement) for statement in [*found.removed, found.last]}
    for statement in found.removed:
        names = {pair[0]} if (pair := assigned(statement)) else writes(statement)
        start = list(scope.block).index(statement)
        for name in names:
            ended = False
            for later in scope.block[start + 1 :]:
                if id(later) not in chain and loads(later, name):
                    raise Refusal(f"{name!r} is used again on line {scope.file.line(later)}")
                pair = assigned(later)
                if pair and pair[0] == name:
                    ended = True
                    break
            if not ended:
                inside = sum(loads(s, name) for s in scope.block)
                if loads(scope.function.body, name) > inside:
                    raise Refusal(f"{name!r} is used outside the lines that compute it")


def _dead_masks(scope: Scope, found: Attention, expression: cst.BaseExpression) -> list[cst.BaseStatement]:
    """Local masks that nothing reads any more once `is_causal` replaces them."""
    if _mask_text(found)[0] != "causal":
        return []
    dead: list[cst.BaseStatement] = []

    def gone(name: str) -> int:
        """Reads of a name that disappear: in removed lines, and in the product as far as the call does not repeat
        them.
        """
        return (
            sum(loads(s, name) for s in [*dead, *found.removed]) + loads(found.product, name) - loads(expression, name)
        )

    changed = True
    while changed:
        changed = False
        for statement in scope.block:
            pair = assigned(statement)
            if (
                not pair
                or statement in [*dead, *found.removed, found.last]
                or not _pure_constructor(scope.file, pair[1])
            ):
                continue
            if 0 < gone(pair[0]) == loads(scope.function.body, pair[0]):
                dead.append(statement)
                changed = True
    return dead


def _pure_constructor(file: File, node: cst.BaseExpression) -> bool:
    """A tensor made of sizes only: torch constructors and shape methods, nothing that could matter when it is left
    out.
    """
    for part in walk(node):
        if isinstance(part, cst.Call):
            name = file.qualified(part.func) or ""
            method = part.func.attr.value if isinstance(part.func, cst.Attribute) else ""
            if name not in ("torch.ones", "torch.tril", "torch.triu", "torch.full", "float") and method not in {
                *RESHAPES,
                "tril",
                "triu",
                "triu_",
                "tril_",
                "size",
                "logical_not",
            }:
                return False
    return True


def _mask_text(found: Attention) -> tuple[str, str]:
    """(`causal` | `mask` | `none`, keyword text)."""
    masks = found.masks
    if not masks:
        return "none", ""
    if all(causal for _, _, causal in masks):
        return "causal", "is_causal=True"
    if len(masks) == 1:
        return "mask", f"attn_mask={masks[0][1]}"
    if all(kind == "keep" for kind, _, _ in masks) and not any(" if " in text for _, text, _ in masks):
        return "mask", "attn_mask=" + " & ".join(f"({text})" for _, text, _ in masks)
    if all(kind == "add" for kind, _, _ in masks):
        return "mask", "attn_mask=" + " + ".join(text for _, text, _ in masks)
    raise Refusal("boolean and additive masks are mixed")


def _call_text(file: File, found: Attention) -> str:
    function = file.spelled(f"{FUNCTIONAL}.scaled_dot_product_attention")
    if function is None:
        raise Refusal("the file imports neither torch nor torch.nn.functional")
    query, key, values = found.query, found.key, code(found.values)
    if found.transposed:
        query, key, values = (f"{text}.transpose(1, 2)" for text in (query, key, values))
    keywords = [_mask_text(found)[1], _dropout_text(found), _scale_text(found)]
    text = f"{function}({', '.join([query, key, values, *(k for k in keywords if k)])})"
    return f"{text}.transpose(1, 2)" if found.transposed else text


def _dropout_text(found: Attention) -> str:
    if found.dropout in (None, "0.0", "0"):
        return ""
    return f"dropout_p={found.dropout}"


def _scale_text(found: Attention) -> str:
    """Empty where the factor is the default 1/sqrt(size of the query's last dimension), else `scale=...`."""
    if not found.scale:
        return "scale=1.0"
    if len(found.scale) == 1 and _is_default(found):
        return ""
    for part in found.scale:
        if "tensor(" in part or "torch.sqrt(" in part:
            raise Refusal("the scale is a tensor; scaled_dot_product_attention takes a number")
    text = ""
    for part in found.scale:
        operator, factor = part[0], part[1:]
        factor = (
            factor
            if factor.replace("_", "").replace(".", "").isalnum() or (factor.endswith(")") and " " not in factor)
            else f"({factor})"
        )
        text += (f" {operator} " if text else "1.0 / " if operator == "/" else "") + factor
    return f"scale={text}"


def _is_default(found: Attention) -> bool:
    operator, factor = found.scale[0][0], found.scale[0][1:].replace(" ", "").strip("()")
    sizes = []
    for operand in (found.query, found.key):
        sizes += [f"{operand}.size(-1)", f"{operand}.shape[-1]", f"{operand}.size(3)", f"{operand}.shape[3]"]
    if found.transposed:
        sizes = [size for size in sizes if "3" not in size]
    for size in sizes:
        bare_size = size.replace(" ", "")
        if operator == "/" and factor in (
            f"math.sqrt({bare_size}".rstrip(")"),
            f"{bare_size}**0.5",
            f"math.sqrt({bare_size})".strip("()"),
        ):
            return True
        if operator == "*" and factor in (
            f"{bare_size}**-0.5",
            f"1.0/math.sqrt({bare_size})".strip("()"),
            f"1/math.sqrt({bare_size})".strip("()"),
            f"{bare_size}**(-0.5)".strip("()"),
        ):
            return True
    return False
