"""Weights as files hold them, and the op table that an engine's options mean."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gguf_files import (
    Stored,
    gguf_bytes,
    gguf_metadata,
    gguf_tensors,
    random_weights,
    tiny_config,
    write_gguf_model,
    write_hf_model,
)
from support.op_cases import ISAS

from stolon.errors import InvalidRequest, ModelFileError, UnsupportedModel
from stolon.kernels import StoredWeight, default_ops, usable_cores
from stolon.srt.build import choose_ops
from stolon.srt.loaders import GGMLType, open_model
from stolon.srt.models.config import Architecture

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "gemma3")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_every_matrix_is_its_bytes(tmp_path: Path, architecture: Architecture, kind: str) -> None:
    config = tiny_config(architecture, tie_embeddings=False)
    weights = random_weights(config)
    path = tmp_path / ("m.gguf" if kind == "gguf" else "m")
    (write_gguf_model if kind == "gguf" else write_hf_model)(path, config, weights)
    source = open_model(path)
    for name, values in weights.items():
        if values.ndim == 2:
            stored = source.stored(name)
            assert (stored.kind, stored.shape) == ("F32", values.shape)
            assert stored.data.dtype == np.uint8
            assert np.array_equal(stored.data.view("<f4").reshape(values.shape), values)
            assert torch.equal(stored.tensor(torch.float32), torch.from_numpy(values))
            del stored
    with pytest.raises(ModelFileError, match="no tensor 'x'"):
        source.stored("x")
    source.close()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    config = tiny_config("llama")
    tensors = gguf_tensors(config, random_weights(config))
    tensors["blk.0.attn_v.weight"] = Stored((16, 32), GGMLType.IQ4_NL, bytes(16 * 18))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(gguf_metadata(config), tensors))
    source = open_model(path)
    with pytest.raises(UnsupportedModel, match="IQ4_NL"):
        source.stored("model.layers.0.self_attn.v_proj.weight")
    source.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_as_stored(dtype: torch.dtype) -> None:
    values = torch.randn(6, 10).to(dtype)
    for tensor in (values, values.t().contiguous().t(), values[1:]):
        stored = StoredWeight.of(tensor)
        bits = torch.from_numpy(stored.data.copy()).view(dtype).view(stored.shape)
        assert torch.equal(bits, tensor)
        copy = stored.tensor(torch.float32)
        copy.zero_()
        assert torch.equal(stored.tensor(dtype), tensor)


def test_tables_that_options_mean() -> None:
    assert choose_ops("float32", None, None).name == "reference"
    assert choose_ops("auto", "torch_cpu", None).name == "torch_cpu"
    fast = "native" if ISAS else "torch_cpu"
    assert choose_ops("auto", None, None).name == fast
    for isa in ISAS:
        assert choose_ops("bfloat16", f"native:{isa}", None).name == "native"
    for dtype, kernels in (
        ("float16", None),
        ("bfloat16", "reference"),
        ("auto", "cuda"),
        ("auto", 3),
    ):
        with pytest.raises(InvalidRequest):
            choose_ops(dtype, kernels, None)  # type: ignore[arg-type]


def test_without_native_kernels_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "stolon.kernels.cpu", None)
    with caplog.at_level(logging.WARNING):
        assert default_ops().name == "torch_cpu"
    assert "native kernels can't be loaded" in caplog.text
    with pytest.raises(InvalidRequest, match="can't be loaded"):
        choose_ops("auto", "native", None)


def test_usable_cores() -> None:
    assert 1 <= usable_cores() <= 1 << 16
