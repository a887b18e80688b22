"""Attention of one group of rows with torch's fused CPU kernel, which sums in float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from stolon.kernels.ops import AttentionSpec
from stolon.kernels.torch_cpu.plan import Group


def attend(
    q: Tensor, cache_k: Tensor, cache_v: Tensor, group: Group, spec: AttentionSpec
) -> Tensor:
    """q ``[rows, heads, head_dim]`` of the group, in row order -> ``[rows, heads, head_dim]``.

    The query heads that read one kv head are laid along the query axis, so keys and values are
    never repeated.
    """
    kv_heads, dim = spec.num_kv_heads, spec.head_dim
    share = spec.num_heads // kv_heads
    if group.span is not None:
        first, end = group.span
        k, v = cache_k[first:end], cache_v[first:end]
    else:
        assert group.slots is not None
        k = cache_k.index_select(0, group.slots)
        v = cache_v.index_select(0, group.slots)
    k = k.view(group.runs, group.kv_len, kv_heads, dim).transpose(1, 2)
    v = v.view(group.runs, group.kv_len, kv_heads, dim).transpose(1, 2)
    if group.q_len == 1:
        q = q.reshape(group.runs, kv_heads, share, dim)
        return _softmax_attention(q, k, v, group, spec).reshape(group.runs, spec.num_heads, dim)
    q = q.transpose(0, 1).unsqueeze(0)
    return _softmax_attention(q, k, v, group, spec)[0].transpose(0, 1)


def _softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, spec: AttentionSpec
) -> Tensor:
    """q ``[runs, heads, rows, head_dim]``, k and v ``[runs, kv_heads, slots, head_dim]``."""
    if spec.softcap is not None:
        return _capped_attention(q, k, v, group, spec.scale, spec.softcap)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=group.mask,
        is_causal=group.causal,
        scale=spec.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _capped_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, scale: float, softcap: float
) -> Tensor:
    """The fused kernel knows no cap on the scores; written out, in float32."""
    repeat = q.shape[1] // k.shape[1]
    keys = k.float().repeat_interleave(repeat, dim=1)
    values = v.float().repeat_interleave(repeat, dim=1)
    scores = torch.tanh(q.float() @ keys.transpose(2, 3) * (scale / softcap)) * softcap
    mask = group.mask
    if group.causal:
        mask = torch.ones(group.q_len, group.kv_len, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill_(~mask, float("-inf"))
    return (torch.softmax(scores, dim=-1) @ values).to(q.dtype)
