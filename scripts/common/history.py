"""What earlier rounds tried: their verdict files, oldest first."""

from __future__ import annotations

from pathlib import Path


def verdict_files(places: list[Path]) -> list[Path]:
    """Each file as it is, each round folder (`r<k>`) as the `c*/verdict.json` in it, by number of the candidate."""
    found = []
    for place in places:
        if place.is_dir():
            found += sorted(place.glob("c*/verdict.json"), key=lambda path: int(path.parent.name[1:]))
        else:
            found.append(place)
    return found
