"""Weights that are no numbers: the error names the model's file and says what may be wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.engines import collect, hash_engine
from support.gguf_files import (
    Weights,
    random_weights,
    tiny_config,
    write_gguf_model,
    write_hf_model,
)
from support.hash_model import HashRunner

from stolon.errors import InternalError, ModelFileError
from stolon.srt import engine as engine_module
from stolon.srt.engine import Engine
from stolon.srt.messages.request import SelectMethod
from stolon.srt.models.config import ModelConfig
from stolon.srt.protocol import Failed, Request, Select, Tokens

CONFIG = replace(tiny_config("llama"), vocab_size=ByteTokenizer().vocab_size)
MATRIX = "model.layers.1.mlp.down_proj.weight"
VECTOR = "model.layers.1.input_layernorm.weight"

Write = Callable[[Path, ModelConfig, Weights], Path]


def gguf(tmp_path: Path, config: ModelConfig, weights: Weights) -> Path:
    return write_gguf_model(tmp_path / "spoilt.gguf", config, weights)


def folder(tmp_path: Path, config: ModelConfig, weights: Weights) -> Path:
    path = write_hf_model(tmp_path / "spoilt.gguf", config, weights)
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """An engine whose model has one value of one tensor replaced."""
    monkeypatch.setattr(engine_module, "tokenizer_of", lambda source: (ByteTokenizer(), None))

    def load(write: Write, name: str, value: float) -> Engine:
        weights = random_weights(CONFIG)
        weights[name].flat[3] = value
        return Engine(write(tmp_path, CONFIG, weights), dtype="float32", kv_tokens=64)

    return load


@pytest.mark.parametrize("write", [gguf, folder])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_matrix_shows_in_the_logits(
    load: Callable[..., Engine], write: Write, value: float
) -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"return_logprob": True},
        {"prompt_logprobs": 0},
    ]
    with load(write, MATRIX, value) as engine:
        for options in asked:
            with pytest.raises(InternalError, match="logit") as caught:
                engine.generate("abc", max_tokens=2, **options)
            assert caught.value.where == "spoilt.gguf"
            assert "damaged" in (caught.value.hint or "")
            assert "dtype" in (caught.value.hint or "")


@pytest.mark.parametrize("write", [gguf, folder])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_vector_is_found_when_it_is_read(
    load: Callable[..., Engine], write: Write, value: float
) -> None:
    with pytest.raises(ModelFileError, match="NaN or infinity") as caught:
        load(write, VECTOR, value)
    assert caught.value.where == "spoilt.gguf"
    assert "norm.weight" in caught.value.message


def test_nothing_is_selected_by_scores_that_are_no_numbers(load: Callable[..., Engine]) -> None:
    with load(gguf, MATRIX, math.nan) as engine:
        methods = get_args(SelectMethod)
        for method in methods:
            select = Select(choices=("yes", "no"), method=method)
            failed = collect(engine, Request(rid="a", segments=[Tokens([97]), select]))[-1]
            assert isinstance(failed, Failed), method
            assert (failed.code, failed.where) == ("internal_error", "spoilt.gguf")


def test_a_model_without_a_file_is_told_by_its_name() -> None:
    class Broken(HashRunner):
        def forward(self, batch: Any) -> Any:
            return super().forward(batch) * math.nan

    with (
        hash_engine(runner=Broken(num_slots=64, context=64)) as engine,
        pytest.raises(InternalError, match="NaN") as caught,
    ):
        engine.generate("a", max_tokens=1)
    assert caught.value.where == engine.info.name
