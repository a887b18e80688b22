"""A GGUF file as a model: its metadata as a ModelConfig, its tensors under canonical names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.kernels import StoredWeight
from stolon.srt.loaders.dequant import check_supported, dequantise
from stolon.srt.loaders.ggml import GGMLType
from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.loaders.gguf_config import ROPE_FREQS, read_config
from stolon.srt.loaders.layout import check_tensor, check_values, tensor_shapes
from stolon.srt.models.config import ModelConfig

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
# With norms around both sublayers, the one before the MLP has its own canonical name.
_LAYER_POST_NORMS = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


class GGUFModel:
    """WeightSource over a GGUF file of architecture llama, qwen2, qwen3 or gemma3.

    All tensors are present with the right shapes once the constructor returns. Raises
    ModelNotFound, ModelFileError or UnsupportedModel.

    Attributes:
        file: the container, for the tokenizer's metadata.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = GGUFFile.open(path)
        try:
            self._config = read_config(self.file)
            self._shapes = tensor_shapes(self._config)
            self._stored = {name: stored_name(name, self._config) for name in self._shapes}
            self._check_tensors()
        except BaseException:
            self.file.close()
            raise

    @property
    def config(self) -> ModelConfig:
        """Sizes and constants of the model."""
        return self._config

    @property
    def names(self) -> frozenset[str]:
        """Canonical names of all tensors."""
        return frozenset(self._shapes)

    def quantised(self, name: str) -> tuple[GGMLType, npt.NDArray[np.uint8], tuple[int, ...]]:
        """A tensor as it is stored: format, bytes, shape; rows are already in canonical order.

        The bytes are a view of the file where possible: copy what must outlive `close`.
        """
        stored = self._stored.get(name)
        if stored is None:
            raise ModelFileError(f"the model has no tensor {name!r}", where=self.file.path.name)
        info, raw = self.file.tensors[stored], self.file.raw(stored)
        heads = self._permuted_heads(name)
        if heads:
            # llama files interleave the two halves of every head for ggml's rotary embedding. Rows
            # are whole blocks, so undoing it moves stored bytes.
            rows = info.shape[0]
            order = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()
            raw = raw.reshape(rows, -1)[order].ravel()
        return info.type, raw, info.shape

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """A fresh, contiguous, dequantised copy of one tensor; ModelFileError if it is absent, or
        a vector that is not finite."""
        kind, raw, shape = self.quantised(name)
        values = dequantise(raw, kind, shape, dtype, name=self._stored[name])
        return check_values(self._stored[name], values, where=self.file.path.name)

    def stored(self, name: str) -> StoredWeight:
        """A matrix as the file holds it; errors as `tensor`."""
        kind, raw, shape = self.quantised(name)
        check_supported(kind, name=self._stored[name])
        rows, inputs = shape

        def tensor(dtype: torch.dtype) -> Tensor:
            return dequantise(raw, kind, shape, dtype, name=self._stored[name])

        return StoredWeight(kind.name, raw, (rows, inputs), tensor)

    def close(self) -> None:
        """Release the file."""
        self.file.close()

    def _permuted_heads(self, name: str) -> int:
        """How many heads the rows of a permuted tensor form; 0 for all other tensors."""
        if self._config.architecture != "llama":
            return 0
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else 0

    def _check_tensors(self) -> None:
        where, tensors = self.file.path.name, self.file.tensors
        for name, shape in self._shapes.items():
            stored = self._stored[name]
            info = tensors.get(stored)
            check_tensor(stored, info.shape if info else None, shape, where=where)
        unknown = tensors.keys() - set(self._stored.values()) - {ROPE_FREQS}
        if unknown:
            raise UnsupportedModel(
                f"tensor {min(unknown)!r} has no place in a {self._config.architecture} model"
                + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""),
                where=where,
                hint="the file holds a variant of the architecture that is not implemented",
            )


def stored_name(name: str, config: ModelConfig) -> str:
    """Name in a GGUF file of a canonical tensor."""
    if name in _TOP:
        return _TOP[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    names = _LAYER_POST_NORMS if config.post_norms else _LAYER
    return f"blk.{layer}.{names[module]}.{kind}"
