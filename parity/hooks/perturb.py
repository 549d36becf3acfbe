"""One-ulp nudges of the weights: the natural spread of a job whose repeats are bit-identical (the method of CESM-ECT).

Every floating parameter element moves by one unit in the last place, up or down by chance, once. The chance comes
from generators of its own, so the job's random streams do not move. Zeros, non-finite values and 8-bit floats stay as
they are.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable

from parity.hooks.values import local


class Nudger:
    """Remembers which parameters were nudged, and nudges again those that were overwritten (loaded, re-initialised)
    since.
    """

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch = torch
        self.seed = seed
        self.versions: Dict[int, Any] = {}
        self.tensors = 0
        self.elements = 0

    def nudge(self, parameters: Iterable[Any]) -> None:
        """Nudge what has not been nudged."""
        for parameter in parameters:
            if (
                not parameter.dtype.is_floating_point
                or parameter.element_size() == 1
                or parameter.device.type == "meta"
            ):
                continue
            known = self.versions.get(id(parameter))
            if known is not None and known[0] is parameter and _same(known[1], _version(parameter)):
                continue
            if known is None:
                self.tensors += 1
                self.elements += parameter.numel()
            self._one(local(parameter.detach()))
            self.versions[id(parameter)] = (parameter, _version(parameter))

    def done(self) -> None:
        """Forget the parameters: the first step is over."""
        self.versions.clear()

    def _one(self, tensor: Any) -> None:
        torch = self.torch
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed((self.seed * 1000003 + self.tensors) % 2**63)
        with torch.no_grad():
            up = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device, dtype=integer) * 2 - 1
            limit = torch.finfo(tensor.dtype).max
            movable = (tensor != 0) & (tensor.abs() < limit)
            tensor.view(integer).add_(up * movable.to(integer))


def _same(before: int, now: int) -> bool:
    """Whether a weight was left alone; where versions are not counted (moved under inference mode), it is taken so."""
    return before == now or -1 in (before, now)


def _version(tensor: Any) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # inference tensors do not count versions
        return -1
