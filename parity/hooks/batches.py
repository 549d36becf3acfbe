"""What the model was fed: a record for each tensor of a batch, and a running hash of samples that survives honest
changes.

Integer tensors of two dimensions (token ids, labels, masks) are hashed row by row over their content: leading and
trailing runs of padding (the values -100, -1, 0 and whatever fills the ends of the rows of this job) do not count, so
that padding to the longest sample instead of a fixed length, or a pad on the other side, gives the same hash, while
any other change of values, order or rows gives another one. Other shapes are hashed row by row as they are, rows of
one-byte types (images, masks) eight elements at a time: the hash then depends on the bytes. On a CPU 20 MB of images cost
some 10 ms.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

from parity.summary import _GOLDEN, CACHED, mix_

MAX_LEAVES = 32


def leaves(torch: Any, value: Any, name: str = "", depth: int = 0) -> Iterator[Tuple[str, Any]]:
    """The tensors in nested arguments, with dotted names, at most five levels deep."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < 5:
        if isinstance(value, (list, tuple)):
            parts: Any = enumerate(value)
        elif hasattr(value, "items") and hasattr(value, "keys"):
            parts = value.items()
        else:
            return
        for key, part in parts:
            yield from leaves(torch, part, "%s.%s" % (name, key) if name else str(key), depth + 1)


def named(torch: Any, args: Any, kwargs: Any) -> List[Tuple[str, Any]]:
    """Tensors of a call: keywords by name, positions by number; a lone positional argument has no number."""
    positional = args[0] if len(args) == 1 else args
    found = list(leaves(torch, positional)) + list(leaves(torch, kwargs or {}))
    return [(name.replace(" ", "_"), tensor) for name, tensor in found[:MAX_LEAVES]]


def rows(found: List[Tuple[str, Any]]) -> int:
    """Samples in a batch: the leading size of its first tensor that has one."""
    for _, tensor in found:
        if tensor.dim():
            return int(tensor.shape[0])
    return 0


def is_integer(tensor: Any) -> bool:
    """Whether content can be hashed exactly."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


class Stream:
    """Counts of what went in, accumulated on the device: rows, tokens and an order-dependent hash of the rows.

    The hash of row r (numbered through the whole run) with content c is mixed with r and summed, so that the total
    does not depend on how rows were grouped into batches.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.rows = 0
        self.totals: Dict[Any, Any] = {}  # (name, device) -> int64 tensor [hash, tokens]
        self.pads: Dict[Any, Any] = {}  # (name, device) -> int64 scalar: what fills the ends of rows
        self.has_tokens = False

    def add(self, torch: Any, found: List[Tuple[str, Any]]) -> List[Tuple[str, Any]]:
        """Count a batch; returns (name, int64 scalar hash) of its integer tensors, on their devices."""
        count = rows(found)
        hashes = []
        tokens_counted = False
        for name, tensor in found:
            tensor = tensor.detach()
            if not is_integer(tensor) or tensor.numel() == 0 or tensor.dim() == 0:
                continue
            with torch.no_grad():
                per_row, tokens = self._row_hashes(torch, name, tensor)
                index = torch.arange(self.rows, self.rows + per_row.numel(), dtype=torch.int64, device=tensor.device)
                placed = mix_(per_row ^ index.mul_(_GOLDEN)).sum()
                if tensor.dim() == 2 and not tokens_counted and tensor.dtype not in (torch.bool, torch.uint8):
                    tokens_counted = self.has_tokens = True
                else:
                    tokens = torch.zeros((), dtype=torch.int64, device=tensor.device)
                pair = torch.stack([placed, tokens])
                total = self.totals.get((name, tensor.device))
                self.totals[(name, tensor.device)] = pair if total is None else total + pair
                local = torch.arange(per_row.numel(), dtype=torch.int64, device=tensor.device)
                hashes.append((name, mix_(per_row ^ local.mul_(_GOLDEN)).sum()))
        self.calls += 1
        self.rows += count
        return hashes

    def result(self) -> Dict[str, Any]:
        """Totals, waiting for the devices: only at the end of the job."""
        tokens = 0
        hashes: Dict[str, int] = {}
        for (name, _), total in self.totals.items():
            part, counted = total.tolist()
            hashes[name] = (hashes.get(name, 0) + part) % 2**64
            tokens += counted
        return {
            "rows": self.rows,
            "hash": {name or "input": "%016x" % whole for name, whole in sorted(hashes.items())} or None,
            "tokens": tokens if self.has_tokens else None,
        }

    def count(self, found: List[Tuple[str, Any]]) -> None:
        """Count a batch without looking at its values."""
        self.calls += 1
        self.rows += rows(found)

    def _row_hashes(self, torch: Any, name: str, tensor: Any) -> Tuple[Any, Any]:
        if tensor.dim() != 2 or tensor.shape[1] < 2:
            return _hashed_whole(torch, tensor), torch.zeros((), dtype=torch.int64, device=tensor.device)
        ids = tensor.to(torch.int64)
        place = torch.arange(ids.shape[1], dtype=torch.int64, device=ids.device)
        pad = self._pad(torch, name, ids, place)
        content = (ids != 0) & (ids != -1) & (ids != -100) & (ids != pad)
        last = (content * (place + 1)).amax(1)  # one past the last content; 0 for a row without any
        first = ids.shape[1] - (content * (ids.shape[1] - place)).amax(1)
        inside = (place >= first[:, None]) & (place < last[:, None])
        hashed = mix_((place - first[:, None]).mul_(_GOLDEN).bitwise_xor_(ids)).mul_(inside)
        return hashed.sum(1), inside.sum()

    def _pad(self, torch: Any, name: str, ids: Any, place: Any) -> Any:
        """What ends the row with the longest constant tail (three or more); as before, where no row has one."""
        end = ids[:, -1:]
        last_other = ((ids != end) * (place + 1)).amax(1)
        tail = ids.shape[1] - last_other
        longest = tail.amax()
        which = tail.argmax()
        value = ids.index_select(0, which.reshape(1))[0, -1]
        before = self.pads.get((name, ids.device))
        if before is None:
            before = torch.full((), -1, dtype=torch.int64, device=ids.device)
        # a mask of ones is content, not padding: 1 is taken for padding only where larger values occur
        pad = torch.where((longest >= 3) & ((value != 1) | (ids.amax() > 1)), value, before)
        self.pads[(name, ids.device)] = pad
        return pad


def _hashed_whole(torch: Any, tensor: Any) -> Any:
    """Hash of each row's elements and their order: an int64 vector."""
    table = tensor.reshape(tensor.shape[0], -1)
    first = 0
    if table.element_size() == 1 and table.shape[1] >= 8:
        first, table = table.shape[1], _words(torch, table)  # rows of different lengths are numbered differently
    step = max(1, CACHED // table.shape[0]) if table.device.type == "cpu" else table.shape[1]
    total: Any = None
    for start in range(0, table.shape[1], step):
        piece = table[:, start : start + step].to(torch.int64)
        place = torch.arange(first + start, first + start + piece.shape[1], dtype=torch.int64, device=table.device)
        part = mix_(piece ^ place.mul_(_GOLDEN)).sum(1)
        total = part if total is None else total.add_(part)
    return total


def _words(torch: Any, table: Any) -> Any:
    """Rows of one-byte elements as rows of 64-bit words, the last filled with zeros."""
    missing = -table.shape[1] % 8
    if missing:
        table = torch.nn.functional.pad(table.view(torch.uint8), (0, missing))
    elif not table.is_contiguous() or table.storage_offset() % 8:
        table = table.clone(memory_format=torch.contiguous_format)
    return table.view(torch.int64)


__all__ = ["Stream", "is_integer", "leaves", "named", "rows"]
