"""Rotary embedding in torch, with the signature of vllm's operator."""

import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    """Rotate `query` and `key`, each [tokens, heads * head_size], in place; `cos_sin_cache` is [positions, rotated]."""
    cos, sin = cos_sin_cache[positions.flatten()].unsqueeze(1).chunk(2, dim=-1)
    rotated = cos_sin_cache.shape[-1]
    for x in (query, key):
        if x is None:
            continue
        part = x.view(x.shape[0], -1, head_size)[..., :rotated]
        first, second = part.chunk(2, dim=-1) if is_neox else (part[..., ::2], part[..., 1::2])
        turned = first * cos - second * sin, second * cos + first * sin
        part.copy_(torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2))
