"""Tapes: the key is the request, a miss in replay is an error, and no secret is written."""

import json
from pathlib import Path

import pytest

from scripts.common.errors import InputError
from scripts.propose.llm.tape import Tape, default_mode, key_of, redacted

REQUEST = {"provider": "litellm", "model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": None,
           "response_format": None, "parameters": {"temperature": 0.7, "max_tokens": 10}}  # fmt: skip


def test_the_key_is_the_canonical_request_and_the_sample() -> None:
    assert key_of(REQUEST, 0) == key_of(dict(reversed(REQUEST.items())), 0)
    different = [key_of(REQUEST, 0), key_of(REQUEST, 1)]
    for field, value in (("model", "n"), ("messages", []), ("tools", [1]), ("parameters", {"temperature": 0})):
        different.append(key_of({**REQUEST, field: value}, 0))
    assert len(set(different)) == 6


def test_recorded_is_replayed_whole(tmp_path: Path) -> None:
    key = key_of(REQUEST, 0)
    entry = {
        "request": REQUEST,
        "sample": 0,
        "response": {"choices": [{"message": {"content": "é"}}]},
        "attempts": [],
        "usage": {},
    }
    stored = Tape(tmp_path, "record").record(key, entry)
    assert Tape(tmp_path, "replay").play(key) == stored
    assert Tape(tmp_path, "live").play(key) is None  # live always asks


def test_a_miss_a_torn_file_and_a_wrong_file_are_errors(tmp_path: Path) -> None:
    tape, key = Tape(tmp_path, "replay"), "ab" * 32
    with pytest.raises(InputError, match="no answer abababababababab"):
        tape.play(key)
    tape.path(key).write_text('{"schema": "wholejob/tape@1", ')
    with pytest.raises(InputError, match="not JSON"):
        tape.play(key)
    tape.path(key).write_text(json.dumps({"schema": "wholejob/tape@1", "key": "other"}))
    with pytest.raises(InputError, match="is no answer to"):
        tape.play(key)
    with pytest.raises(InputError, match="replay, record or live"):
        Tape(tmp_path, "rewind")


def test_secrets_are_redacted_by_the_environment_and_by_their_shape(tmp_path: Path) -> None:
    environment = {"MY_API_KEY": "s3cr3t-value-1", "HOME": "/root/home-is-no-secret", "TOKEN": "short"}
    shapes = ["sk-abcdefghijklmnop1234", "ghp_" + "a" * 36, "AKIA" + "B" * 16, "hf_" + "c" * 30, "Bearer " + "d" * 20]
    text = " ".join(["s3cr3t-value-1", "/root/home-is-no-secret", "short", *shapes])
    got = redacted({"a": [text], "s3cr3t-value-1": 1}, environment)
    assert got["a"][0].count("[redacted]") == 6 and "home-is-no-secret" in got["a"][0] and "short" in got["a"][0]
    assert "[redacted]" in got


def test_replay_is_the_default_in_ci_and_without_a_key() -> None:
    assert default_mode({"CI": "true"}, True) == "replay"
    assert default_mode({}, False) == "replay"
    assert default_mode({"CI": "false"}, True) == "record"
