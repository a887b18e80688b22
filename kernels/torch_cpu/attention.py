"""Attention of one group of runs with torch's fused CPU kernel, which sums in float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import AttentionSpec
from stolon.kernels.torch_cpu.plan import Group


def attend(
    q: Tensor, cache_k: Tensor, cache_v: Tensor, group: Group, spec: AttentionSpec
) -> Tensor:
    """q ``[rows, heads, head_dim]`` of the group, in row order -> ``[rows, heads * head_dim]``.

    The query heads that read one kv head are laid along the query axis, so keys and values are
    never repeated.
    """
    kv_heads, dim = spec.num_kv_heads, spec.head_dim
    share = spec.num_heads // kv_heads
    k, v = fetch(cache_k, group), fetch(cache_v, group)
    if group.q_len == 1:
        mask = group.blocks[0].mask
        out = softmax_attention(q.reshape(group.runs, kv_heads, share, dim), k, v, mask, spec)
        return out.reshape(group.runs, -1)
    parts = []
    for block in group.blocks:
        rows = q[block.rows]
        count = rows.shape[0]
        queries = rows.view(count, kv_heads, share, dim).transpose(0, 1)
        out = softmax_attention(
            queries.reshape(1, kv_heads, count * share, dim),
            k[:, :, block.context],
            v[:, :, block.context],
            block.mask,
            spec,
        )
        parts.append(out.view(kv_heads, count, share, dim).transpose(0, 1).reshape(count, -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def fetch(cache: Tensor, group: Group) -> Tensor:
    """``[runs, kv_heads, kv_len, head_dim]`` of the group's contexts."""
    slots = group.slots
    rows = cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)
    return rows.view(group.runs, group.kv_len, *cache.shape[1:]).transpose(1, 2)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec
) -> Tensor:
    """q ``[runs, kv_heads, queries, head_dim]`` over k, v ``[runs, kv_heads, slots, head_dim]``."""
    if spec.softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale)
    # The fused kernel knows no cap on the scores.
    scores = q.float() @ k.float().transpose(2, 3)
    scores = scores.mul_(spec.scale / spec.softcap).tanh_().mul_(spec.softcap)
    if mask is not None:
        scores.add_(mask)
    return (torch.softmax(scores, dim=-1) @ v.float()).to(q.dtype)
