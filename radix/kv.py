"""The KV cache: keys and values of every layer, one row a slot."""

from __future__ import annotations

import torch
from torch import Tensor

from stolon.errors import InternalError


class KVCache:
    """Per layer two tensors ``[num_slots + 1, num_kv_heads, head_dim]``; a token's slot is its row.

    The rows are not initialised, so memory is committed only as slots are first written. The one
    row past the pool's slots, `scratch_slot`, belongs to no token: padded rows of a step are
    written to it and padded gathers read it. It begins as zeros, so what is gathered from it is
    finite and masks to exactly nothing.

    Attributes:
        k, v: one tensor a layer.
        num_slots: usable slots (those of the pool).
        scratch_slot: index of the padding row.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        if min(num_layers, num_slots, num_kv_heads, head_dim) < 1:
            raise InternalError("a KV cache needs at least one layer, slot, head and dimension")
        self.num_slots = num_slots
        self.scratch_slot = num_slots
        self.dtype = dtype
        shape = (num_slots + 1, num_kv_heads, head_dim)
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        for _ in range(num_layers):
            for cache in (self.k, self.v):
                rows = torch.empty(shape, dtype=dtype, device=device)
                rows[self.scratch_slot].zero_()
                cache.append(rows)

    @staticmethod
    def bytes_per_token(
        num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes of one slot over all layers, keys and values."""
        return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
