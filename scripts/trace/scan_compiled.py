"""The scanner of `scan.py`, compiled with numba: the same text, so the two speeds cannot drift apart.

The first use with an empty cache compiles for some seconds; `scripts.trace.compiled` says so and sets the cache folder.
"""

from pathlib import Path
from typing import Any

_source = Path(__file__).with_name("scan.py")
exec(compile(_source.read_bytes(), str(_source), "exec"))  # __name__ ends with "_compiled": scan.py turns numba on


def __getattr__(name: str) -> Any:  # for type checkers: every name of scan.py is here
    raise AttributeError(name)
