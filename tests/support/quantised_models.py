"""Tiny models whose matrices are stored in GGUF's block formats."""

from __future__ import annotations

from typing import Any

import torch
from support.op_cases import random_weight
from support.tiny_models import TensorSource, tiny_model
from torch import Tensor

from stolon.kernels import StoredWeight
from stolon.srt.models.config import Architecture

# What the matrices of a layer are stored in, in turn.
MIXES: dict[str, tuple[str, ...]] = {
    "llama": ("Q4_1",),
    "qwen2": ("Q5_0", "Q4_K", "Q8_0", "Q6_K"),
    "qwen3": ("BF16", "F16"),
    "gemma3": ("Q4_0", "Q5_K", "Q5_1", "Q6_K"),
}


class QuantisedSource(TensorSource):
    """A tiny model with random blocks in place of its matrices: same sizes, about the same spread."""

    def __init__(self, source: TensorSource, kinds: tuple[str, ...]) -> None:
        super().__init__(source.config, source._tensors)
        self._weights: dict[str, StoredWeight] = {}
        matrices = [name for name, tensor in self._tensors.items() if tensor.dim() == 2]
        for index, name in enumerate(matrices):
            tensor = self._tensors[name]
            rows, inputs = tensor.shape
            self._weights[name] = random_weight(
                kinds[index % len(kinds)], rows, inputs, seed=index, size=float(tensor.std())
            )

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        if name in self._weights:
            return self._weights[name].tensor(dtype)
        return super().tensor(name, dtype)

    def stored(self, name: str) -> StoredWeight:
        return self._weights[name]


def quantised_model(architecture: Architecture, **changes: Any) -> QuantisedSource:
    """A tiny model, 256 wide because the largest blocks are; `changes` are fields of `ModelConfig`."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_heads": 4, "head_dim": 64}
    source = tiny_model(architecture, **(sizes | {"query_scale": 0.125} | changes))
    assert isinstance(source, TensorSource)
    return QuantisedSource(source, MIXES[architecture])
