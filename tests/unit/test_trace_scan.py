"""The scanner's parts against exact oracles: decimals, floats, hashes, words."""

# ruff: noqa: E501
from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.trace import compiled, dataset, scan


@pytest.fixture(params=["plain", "compiled"], scope="module")
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "plain":
        return scan
    if not compiled.available():
        pytest.skip("numba is not installed: only the plain scanner can be tested")
    return compiled.module("scan_compiled")


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode() + b"\0" * 16, np.uint8)


def _exact(text: str) -> int | None:
    time = int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))
    return time if -(2**63) < time < 2**63 else None


@pytest.mark.parametrize(
    "text",
    ["0", "1", "-1", "5119840434626.766", "1712195495519689.047", "0.0005", "0.0015", "0.0025", "-0.0005", "1e3", "1.5e-3", "12.", "9223372036854775.807",
     "9223372036854775.808", "1e300", "1e-300", "0.00049999999999999999999", "0.00050000000000000000001", "123456789012345678901", "000.5"],
)  # fmt: skip
def test_times_are_exact_decimals(kernel: ModuleType, text: str) -> None:
    good, time, _ = kernel.nanoseconds(_bytes(text), 0, len(text))
    assert (int(time) if good else None) == _exact(text)


@pytest.mark.parametrize("text", ["", "-", ".", "e5", "1e", "abc", "1x", "1.2.3", "--1", "inf", "nan"])
def test_what_is_no_time_is_none(kernel: ModuleType, text: str) -> None:
    assert not kernel.nanoseconds(_bytes(text), 0, len(text))[0]


@settings(max_examples=300, deadline=None)
@given(st.decimals(min_value=-(10**16), max_value=10**16, allow_nan=False, places=None))
def test_any_decimal_time(value: Decimal) -> None:
    text = format(value, "f")
    good, time, inexact = scan.nanoseconds(text.encode(), 0, len(text))
    assert (time if good else None) == _exact(text)
    if good:
        assert bool(inexact) == (Decimal(text) * 1000 != time)


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_the_nearest(value: float) -> None:
    text = repr(value)
    end, integer, number = scan.number_end(text.encode(), 0, len(text))
    assert end == len(text)
    kind = scan.INTEGER if integer else scan.NUMBER
    assert scan.real(text.encode(), 0, end, kind, number) == value


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-.eE", max_size=24))
def test_numbers_are_those_of_json(text: str) -> None:
    end, integer, value = scan.number_end(text.encode() + b" ", 0, len(text) + 1)
    try:
        expected = json.loads(text)
    except ValueError:
        assert end != len(text)
        return
    assert end == len(text)
    fits = isinstance(expected, int) and -(2**63) < expected < 2**63
    assert bool(integer) == fits
    assert not fits or value == expected


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_nested_values_end_where_json_ends(value: object) -> None:
    text = json.dumps([value], ensure_ascii=False, indent=1)
    data = text.encode() + b', "x"'
    assert scan.nested_end(data, 0, len(data)) == len(data) - 5
    out = bytearray(8 * len(data))
    size = scan.copy_json(data, 0, len(data) - 5, out, 0)
    assert json.loads(bytes(out[:size])) == [value]


@pytest.mark.parametrize(
    "text", ["[1 2]", "[1,]", "[,1]", "{1:2}", '{"a"}', '["a":1]', "[}", '{"a":1,}', '{"a" "b"}', "[1}"]
)
def test_what_is_no_json_is_broken(text: str) -> None:
    assert scan.nested_end(text.encode(), 0, len(text)) == -2


def test_hash_at_import_is_the_scanners(kernel: ModuleType) -> None:
    for word in ["", "a", "ts", "correlation", "Process Group Description", "x" * 100]:
        assert int(kernel.hash_span(_bytes(word), 0, len(word))) == scan.hash_bytes(word.encode())


def test_every_known_key_is_found(kernel: ModuleType) -> None:
    for number, word in enumerate(scan.WORDS):
        data = _bytes(f"__{word}")
        assert kernel.word_of(data, 2, 2 + len(word.encode())) == number
    assert kernel.word_of(_bytes("no such key"), 0, 11) == -1


def test_the_scanners_classes_are_the_datasets() -> None:
    assert scan.CLASSES[scan.GPU] == "gpu"
    assert scan.CLASSES[scan.METADATA] == "metadata"
    assert dataset.CLASSES == scan.CLASSES
