"""Tapes: the key is the request, a miss in replay is an error, and no secret is written."""

import json
from pathlib import Path

import pytest

from scripts.common.errors import InputError
from scripts.propose.llm.tape import Tape, default_mode, key_of, redacted, source_key_of

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


def test_an_answer_for_other_measured_values_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    context = {"tree": "t", "finding": "f", "family": "", "turn": 0}
    other = {**REQUEST, "messages": [{"role": "user", "content": "hi, 4.1 s"}]}
    here = {**REQUEST, "messages": [{"role": "user", "content": "hi, 2.9 s"}]}
    told = {"request": other, "sample": 0, "source_key": source_key_of(other, 0, context)}
    stored = Tape(tmp_path, "record").record(key_of(other, 0), told)
    wanted = source_key_of(here, 0, context)
    assert Tape(tmp_path, "replay", "source").play(key_of(here, 0), wanted) == stored
    with pytest.raises(InputError, match=r"llm\.match: source"):
        Tape(tmp_path, "replay").play(key_of(here, 0), wanted)
    assert Tape(tmp_path, "record", "source").play(key_of(here, 0), wanted) is None  # who may ask, asks
    for change in ({"tree": "u"}, {"finding": "g"}, {"family": "x"}, {"turn": 1}):
        with pytest.raises(InputError, match="no answer"):
            Tape(tmp_path, "replay", "source").play(key_of(here, 0), source_key_of(here, 0, {**context, **change}))
    for wrong in (source_key_of(here, 1, context), source_key_of({**here, "prompt_hash": "p"}, 0, context)):
        with pytest.raises(InputError, match="no answer"):
            Tape(tmp_path, "replay", "source").play(key_of(here, 0), wrong)
    with pytest.raises(InputError, match="request or source"):
        Tape(tmp_path, "replay", "roughly")
