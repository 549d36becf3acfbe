"""What people read in a table: unknown is no zero."""

import pytest

from scripts.report import tables


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("ratio", 1.2345, "1.234x"),
        ("low", None, "-"),
        ("dollars", None, "unknown"),
        ("dollars", 0.0, "0.000"),
        ("dollars_per_accepted", None, "-"),
        ("kept", False, "no"),
    ],
)
def test_values_as_people_read_them(column, value, text):
    assert tables.shown(column, value) == text


def test_price_is_unknown_where_one_call_has_none():
    tried = [{"proposal": {"usage": {"calls": 1, "dollars": 0.5}}}, {"proposal": {"usage": {"calls": 1}}}]
    row = tables._cost("toy", "model", tried, [])
    assert row["dollars"] is None and row["calls"] == 2
