"""Which frames of a trace are the job's own."""

from __future__ import annotations

import pytest

from scripts.trace.frames import is_own


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("serve.py", True),
        ("/home/me/job/serve.py", True),
        ("/home/me/parity/train.py", True),
        ("/opt/wholejob/parity/hooks/windows.py", False),  # the recorder where it is a folder, as seen on an H200
        ("/opt/wholejob/parity/recorder.py", False),
        ("parity/hooks/steps.py", False),
        ("torch/profiler/profiler.py", False),
        ("/usr/lib/python3.12/runpy.py", False),
    ],
)
def test_the_recorder_and_libraries_are_not_the_job(path: str, own: bool) -> None:
    assert is_own(path) is own
