"""Norms over many tensors, on their device, without waiting for it."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional


def local(tensor: Any) -> Any:
    """The plain tensor: a DTensor's own shard, no collective."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


def total_norm(torch: Any, tensors: Iterable[Any]) -> Optional[Any]:
    """L2 norm over all elements, a 0-dim float tensor; None where there are no dense tensors.

    Norms of tensors in float32 (of float64 in float64), then the norm of these: on a GPU a few launches a hundred
    tensors, whose sums are ordered otherwise than tensor by tensor.
    """
    groups: dict = {}
    for tensor in tensors:
        tensor = local(tensor)
        if tensor.layout is torch.strided and tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    norms: List[Any] = []
    with torch.no_grad():
        for (_, dtype), members in groups.items():
            if dtype.is_complex:
                members = [torch.view_as_real(t) for t in members]
            wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
            norms.append(torch.linalg.vector_norm(torch.stack(_norms(torch, members, wide))))
        if len(norms) < 2:
            return norms[0] if norms else None
        place = norms[0].device
        return torch.linalg.vector_norm(
            torch.stack([n.to(device=place, dtype=torch.float64, non_blocking=True) for n in norms])
        )


def copies(torch: Any, tensors: Iterable[Any]) -> List[Any]:
    """Copies of what the tensors hold now, in as few launches as possible."""
    plain = [local(t) for t in tensors]
    with torch.no_grad():
        if _together(torch, plain):
            return list(torch._foreach_mul(plain, 1))
        return [t.detach().clone() for t in plain]


def moved(torch: Any, tensors: Iterable[Any], before: List[Any]) -> List[Any]:
    """By how much the tensors moved since `copies`; may use up the copies."""
    plain = [local(t) for t in tensors]
    with torch.no_grad():
        if _together(torch, plain) and len(plain) == len(before):
            torch._foreach_sub_(before, plain)  # a norm does not see the sign
            return before
        return [_wide(torch, t.detach()) - _wide(torch, old) for t, old in zip(plain, before)]


def _together(torch: Any, tensors: List[Any]) -> bool:
    """Whether torch can work on all of them in one call."""
    return bool(tensors) and all(
        t.dtype.is_floating_point and t.element_size() > 1 and t.layout is torch.strided for t in tensors
    )


def _wide(torch: Any, tensor: Any) -> Any:
    """8-bit floats, which know no arithmetic, as float32."""
    return tensor.float() if tensor.element_size() == 1 and tensor.dtype.is_floating_point else tensor


def _norms(torch: Any, tensors: List[Any], wide: Any) -> Any:
    tensors = [_wide(torch, t) for t in tensors]
    if tensors[0].dtype == wide:
        return torch._foreach_norm(tensors, 2)
    try:
        return torch._foreach_norm(tensors, 2, wide)
    except (TypeError, RuntimeError):  # torch before 2.4; integers
        return [torch.linalg.vector_norm(t, dtype=wide) for t in tensors]


def parameters_of(optimizer: Any) -> List[Any]:
    """All parameters of an optimizer, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]
