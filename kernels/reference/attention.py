"""Attention of one run over its own context, written out in full."""

from __future__ import annotations

import torch
from torch import Tensor

from stolon.kernels.ops import AttentionSpec


def visible(q_len: int, kv_len: int, window: int | None) -> Tensor:
    """Bool ``[q_len, kv_len]``: row i stands at position ``kv_len - q_len + i`` and sees the
    positions up to its own, the last `window` of them if there is a window."""
    own = torch.arange(kv_len - q_len, kv_len)[:, None]
    other = torch.arange(kv_len)[None, :]
    mask = other <= own
    return mask if window is None else mask & (other > own - window)


def attend_run(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Softmax attention in float32 (arXiv 1706.03762).

    Args:
        q: ``[q_len, heads, head_dim]``, the last rows of the context.
        k, v: ``[kv_len, kv_heads, head_dim]``, the whole context in order of position.

    Returns:
        ``[q_len, heads * head_dim]`` in q's dtype.
    """
    group = spec.num_heads // spec.num_kv_heads
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    mask = visible(q.shape[0], k.shape[0], spec.window)
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1).to(q.dtype)
