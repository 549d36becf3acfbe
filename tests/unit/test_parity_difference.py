"""The kind of a difference, told from the recorder's own summaries, with and without noise on top."""

from __future__ import annotations

import pytest
import torch
from parity_generate import scalar, tensor

from parity.difference import describe, growth


def activations(seed: int = 0, rows: int = 200, columns: int = 640) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) + 0.1


def edited(x, place, value):
    x = x.clone()
    x[place] = value
    return x


CHANGES = {
    "scale": lambda x: x * 1.001,
    "bias": lambda x: x + 0.01,
    "reordering": lambda x: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))],
    "few": lambda x: edited(x, 77, torch.randn(x.shape[1], generator=torch.Generator().manual_seed(2))),
    "everything": lambda x: x + 0.03 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("noise", [0.0, 1e-6, 2e-4])
@pytest.mark.parametrize("kind", CHANGES)
def test_kinds_of_change(kind, noise):
    x = activations()
    changed = CHANGES[kind](x)
    changed = changed * (1 + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(9)))
    found = describe(tensor("h", 0, x), tensor("h", 0, changed))
    assert found["kind"] == kind, found


def test_a_shift_by_one_is_a_reordering_and_one_large_element_is_few():
    x = activations()
    assert describe(tensor("h", 0, x), tensor("h", 0, x.flatten().roll(1).view_as(x)))["kind"] == "reordering"
    found = describe(tensor("h", 0, x), tensor("h", 0, edited(x, (100, 3), 300.0)))
    assert found["kind"] == "few"
    assert "extreme" in found["text"]


def test_the_place_of_a_wrong_row_is_named():
    x = activations()
    text = describe(tensor("h", 0, x), tensor("h", 0, CHANGES["few"](x)))["text"]
    low, high = (int(part.rstrip("%")) for part in text.split() if part.endswith("%"))
    assert low <= 100 * 77 / 200 <= high
    assert high - low < 10


def test_shifted_labels_are_a_reordering_and_other_labels_are_not():
    labels = torch.arange(64) % 7
    assert describe(tensor("y", 0, labels), tensor("y", 0, labels.roll(1)))["kind"] == "reordering"
    assert describe(tensor("y", 0, labels), tensor("y", 0, labels + 1))["kind"] == "exact"


@pytest.mark.parametrize(
    ("base", "cand", "kind"),
    [
        (tensor("x", 0, torch.ones(3)), tensor("x", 0, torch.ones(4)), "shape"),
        (tensor("x", 0, torch.ones(3)), tensor("x", 0, torch.ones(3).half()), "dtype"),
        (tensor("x", 0, torch.ones(3)), tensor("x", 0, torch.tensor([1, float("nan"), 1])), "nan"),
        (scalar("x", 0, 1.0), scalar("x", 0, 1), "type"),
        (scalar("x", 0, "a"), scalar("x", 0, "b"), "exact"),
        (scalar("x", 0, 1.0), scalar("x", 0, 2.0), "number"),
    ],
)
def test_what_needs_no_statistics(base, cand, kind):
    assert describe(base, cand)["kind"] == kind


@pytest.mark.parametrize(
    ("deviations", "kind"),
    [
        ([1, 2, 4, 8, 16], "grows"),
        ([1, 0, 0, 0], "once"),
        ([8, 4, 1, 0.5, 0.1], "fades"),
        ([1, 1, 1], "stays"),
        ([1], "end"),
    ],
)
def test_growth(deviations, kind):
    series = [[step, 0.0, 1e-5] for step in range(5)] + [
        [5 + i, float(value), 1e-5] for i, value in enumerate(deviations)
    ]
    assert growth(series, 5)["kind"] == kind
