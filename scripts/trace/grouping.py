"""Group by several integer keys and sum exactly in int64, on numpy: what the views aggregate with.

One sort a grouping.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]


class Groups:
    """Rows grouped by equal keys. Keys are integers, -1 allowed; groups are numbered in the order of their keys."""

    def __init__(self, *keys: Ints) -> None:
        code = np.zeros(len(keys[0]), np.int64)
        for key in keys:
            distinct, inverse = _factorise(key)
            if len(distinct) > 1 and code.max(initial=0) > (1 << 62) // len(distinct):
                code = np.unique(code, return_inverse=True)[1]
            code = code * max(len(distinct), 1) + inverse
        self.order = np.argsort(code, kind="stable")
        ordered = code[self.order]
        new = np.ones(len(ordered), bool)
        np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
        self.starts = np.flatnonzero(new)
        self.of = np.empty(len(code), np.int64)
        self.of[self.order] = np.cumsum(new) - 1
        self.first = self.order[self.starts]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def count(self) -> Ints:
        """Rows in each group."""
        return np.diff(np.append(self.starts, len(self.order)))

    def sum(self, values: Ints) -> Ints:
        """Exact sums; floats stay floats."""
        return np.add.reduceat(values[self.order], self.starts) if len(self) else values[:0]

    def max(self, values: Ints) -> Ints:
        """Largest value in each group."""
        return np.maximum.reduceat(values[self.order], self.starts) if len(self) else values[:0]

    def min(self, values: Ints) -> Ints:
        """Smallest value in each group."""
        return np.minimum.reduceat(values[self.order], self.starts) if len(self) else values[:0]

    def distinct(self, values: Ints) -> Ints:
        """How many different values that are not negative each group has."""
        pairs = Groups(self.of, values)
        kept = pairs.first[values[pairs.first] >= 0]
        return np.bincount(self.of[kept], minlength=len(self))


def _factorise(key: Ints) -> tuple[Ints, Ints]:
    """(distinct values, codes); small ranges without a sort."""
    if len(key) == 0:
        return key, key.astype(np.int64)
    low, high = int(key.min()), int(key.max())
    if high - low < max(4 * len(key), 1024):
        return np.arange(high - low + 1), key.astype(np.int64) - low
    return np.unique(key, return_inverse=True)
