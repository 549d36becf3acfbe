"""Norms over many tensors, on their device, without waiting for it."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional


def local(tensor: Any) -> Any:
    """The plain tensor: a DTensor's own shard, no collective."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


def total_norm(torch: Any, tensors: Iterable[Any]) -> Optional[Any]:
    """L2 norm over all elements, a 0-dim float tensor; None where there are no dense tensors."""
    groups: dict = {}
    for tensor in tensors:
        tensor = local(tensor.detach())
        if tensor.layout is torch.strided and tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    parts: List[Any] = []
    with torch.no_grad():
        for (_, dtype), members in groups.items():
            if dtype.is_complex:
                members = [torch.view_as_real(t) for t in members]
            wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
            parts.append(torch.stack([_norm(torch, t, wide) for t in members]))
        if not parts:
            return None
        norms = [torch.linalg.vector_norm(part) for part in parts]
        if len(norms) == 1:
            return norms[0]
        place = norms[0].device
        return torch.linalg.vector_norm(
            torch.stack([n.to(device=place, dtype=torch.float64, non_blocking=True) for n in norms])
        )


def _norm(torch: Any, tensor: Any, wide: Any) -> Any:
    if tensor.element_size() == 1 and tensor.dtype.is_floating_point:
        tensor = tensor.to(wide)
    return torch.linalg.vector_norm(tensor, dtype=wide)


def parameters_of(optimizer: Any) -> List[Any]:
    """All parameters of an optimizer, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]
