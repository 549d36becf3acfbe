"""Records what a training or inference job computes, and compares two recordings.

Importing this costs a few milliseconds and needs nothing but the standard library; without `PARITY=1` every call
returns at once. Values go to `PARITY_OUT`, one JSON Lines file a rank (`docs/formats.md`).
"""

from parity.recorder import (
    enabled,
    flush,
    record,
    record_lazy,
    reset,
    set_default_tolerance,
    set_enabled,
    step,
)

__all__ = ["enabled", "flush", "record", "record_lazy", "reset", "set_default_tolerance", "set_enabled", "step"]
__version__ = "0.1.0"
