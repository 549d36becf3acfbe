"""A gzip stream that is inflated straight into the caller's buffer gives what one inflated piece by piece does."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from scripts.trace import stream

SYMBOL = 258  # bytes of the longest one, which isal keeps back at a cut and zlib gives
EVENTS = b"".join(json.dumps({"ph": "X", "ts": i * 1.5, "name": f"op{i % 97}"}).encode() for i in range(20_000))
WHOLE = gzip.compress(EVENTS, 6, mtime=0)
MEMBERS = gzip.compress(EVENTS[:300_000], 6, mtime=0) + gzip.compress(EVENTS[300_000:], 1, mtime=0)


def flipped(data: bytes, at: float) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


FILES = {
    "whole": WHOLE,
    "two members": MEMBERS,
    "padded with zeros": WHOLE + b"\0" * 1000,
    "followed by something else": WHOLE + b"not gzip" * 100,
    "a member behind zeros": WHOLE + b"\0" * 700 + gzip.compress(b"more", mtime=0),
    "empty member": gzip.compress(b"", mtime=0) + WHOLE,
    "twice compressed": gzip.compress(WHOLE, mtime=0),
    "zeros between members, flipped": flipped(WHOLE + b"\0" * 6000 + gzip.compress(EVENTS, 6, mtime=0), 0.95),
    "twice compressed, outer flipped": flipped(gzip.compress(WHOLE, mtime=0), 0.9),
    "twice compressed and cut": gzip.compress(WHOLE, mtime=0)[:-500],
    "a header alone": WHOLE[:10],
    "wrong checksum": WHOLE[:-8] + b"\1\2\3\4" + WHOLE[-4:],
    "wrong length": WHOLE[:-4] + b"\1\2\3\4",
    **{f"cut at {at}": WHOLE[: int(len(WHOLE) * at)] for at in (0.001, 0.2, 0.5, 0.9, 0.9999)},
    **{f"members cut at {at}": MEMBERS[: int(len(MEMBERS) * at)] for at in (0.2, 0.6)},
    **{f"flipped at {at}": flipped(WHOLE, at) for at in (0.1, 0.4, 0.7, 0.99)},
    **{f"members flipped at {at}": flipped(MEMBERS, at) for at in (0.2, 0.8)},
}


def drain(path: Path, piece: int) -> tuple[bytes, list[str]]:
    reader, found = stream.Reader(path), bytearray()
    buffer = memoryview(bytearray(piece))
    try:
        while count := reader.readinto(buffer):
            found += buffer[:count]
    finally:
        reader.close()
    return bytes(found), reader.loss


@pytest.mark.parametrize("piece", [1000, 1 << 16, 1 << 22])
@pytest.mark.parametrize("name", FILES)
def test_direct_and_piecewise_inflation_agree(
    name: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hasattr(stream.inflate, "_GzipReader")  # else nothing is compared
    path = tmp_path / "trace.json.gz"
    path.write_bytes(FILES[name])
    direct, losses = drain(path, piece)
    monkeypatch.setattr(stream, "inflate", zlib)
    piecewise, expected = drain(path, piece)
    # the two libraries find a flipped bit up to a few blocks apart: what both give is the same
    common = min(len(direct), len(piecewise))
    assert direct[:common] == piecewise[:common]
    assert len(losses) == len(expected), (losses, expected)
    if "twice compressed and cut" in name:  # a symbol of the outer stream is many bytes of the inner one's text
        pass
    elif "cut" in name or "header" in name:
        assert abs(len(direct) - len(piecewise)) <= SYMBOL
    elif "flipped" not in name:
        assert direct == piecewise
    if name.startswith("wrong"):
        assert direct == EVENTS
    if name in ("whole", "two members", "padded with zeros", "empty member", "twice compressed"):
        assert direct == EVENTS
        assert losses == []


def test_what_lies_before_a_fault_is_read_through_padding_and_layers(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    for name, least in (("zeros between members, flipped", 1.5), ("twice compressed, outer flipped", 0.5)):
        path.write_bytes(FILES[name])
        found, losses = drain(path, 1 << 20)
        assert len(found) > least * len(EVENTS)
        assert losses


def test_every_byte_before_a_cut_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "trace.json.gz"
    for cut in rng.integers(20, len(WHOLE), 25).tolist():
        path.write_bytes(WHOLE[:cut])
        found, losses = drain(path, 1 << 20)
        inflater = zlib.decompressobj(wbits=31)
        expected = inflater.decompress(WHOLE[:cut])
        assert expected.startswith(found)
        assert len(expected) - len(found) <= SYMBOL
        assert losses == ["the gzip stream ends early"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("cut", [0, 1])
def test_encodings_without_a_mark_and_a_cut_character(encoding: str, cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    written = EVENTS[:9_000].decode().encode(encoding)
    path.write_bytes(written[: len(written) - cut])
    found, losses = drain(path, 1 << 16)
    if cut:
        assert found.startswith(EVENTS[:8_999])
        assert losses == [f"the {encoding} text ends inside a character ({len(' '.encode(encoding)) - 1} bytes)"]
    else:
        assert (found, losses) == (EVENTS[:9_000], [])


def test_a_fourth_layer_of_gzip_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    data = EVENTS
    for _ in range(4):
        data = gzip.compress(data, mtime=0)
    path.write_bytes(data)
    _, losses = drain(path, 1 << 16)
    assert losses == ["after 3 layers of gzip follows another one, which is not inflated"]
