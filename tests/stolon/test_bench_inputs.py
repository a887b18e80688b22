"""What `stolon bench engine` gives to all engines alike, and how it compares their logits."""

import dataclasses

import numpy as np
import pytest
import torch
from support.gguf_files import random_weights, tiny_config, write_gguf_model

from stolon.benchmarks import bandwidth as bandwidth_module
from stolon.benchmarks.hf_folder import hf_config, write_hf_folder
from stolon.benchmarks.machine import core_ids, usable_cores
from stolon.benchmarks.quality import CONTEXT, divergence, measure_quality, real_text
from stolon.benchmarks.workload import (
    SHARED_CONTEXT,
    SHARED_SEQUENCES,
    SHARED_TOKENS,
    passage,
    shared_prompts,
    token_prompts,
)
from stolon.errors import UnsupportedModel
from stolon.srt.loaders import open_model
from stolon.srt.loaders.hf_config import read_config
from stolon.srt.models.config import ModelConfig, RopeScaling


def test_prompts_differ_from_their_beginning():
    texts = [passage(i, 4) for i in range(32)]
    assert len({text[:10] for text in texts}) == 32
    prompts = token_prompts(lambda text: list(text.encode()), 4, 64)
    assert {len(ids) for ids in prompts} == {64}
    with pytest.raises(ValueError, match="shorter"):
        token_prompts(lambda text: [1], 1, 64)


def test_shared_prompts_part_where_they_should():
    prompts = shared_prompts(lambda text: list(text.encode()))
    assert len(prompts) == SHARED_SEQUENCES
    assert {len(ids) for ids in prompts} == {SHARED_CONTEXT}
    assert len({tuple(ids[:SHARED_TOKENS]) for ids in prompts}) == 1
    # "Entry " is common to all passages.
    assert len({tuple(ids[: SHARED_TOKENS + 10]) for ids in prompts}) == SHARED_SEQUENCES


def test_divergence():
    rng = np.random.default_rng(1)
    exact = rng.normal(size=(100, 50)).astype(np.float32)
    assert divergence(exact, exact + 3).max() < 1e-9
    other = exact + rng.normal(size=exact.shape).astype(np.float32)
    found = divergence(exact, other)
    p = np.exp(exact.astype(float))
    p /= p.sum(1, keepdims=True)
    q = np.exp(other.astype(float))
    q /= q.sum(1, keepdims=True)
    assert found == pytest.approx((p * np.log(p / q)).sum(1))
    with pytest.raises(ValueError, match="100 rows of logits against 99"):
        divergence(exact, other[1:])


def test_quality_needs_no_more_than_its_files(tmp_path):
    class Fake:
        name = "fake"

        def ask(self, do, ids, out, chunk):
            np.save(out, np.eye(len(ids), 7, dtype=np.float32))

    found = measure_quality(
        Fake(), [Fake()], lambda text: list(text.encode()), tmp_path, contexts=2, say=print
    )
    assert found["fake"]["prompt"]["positions"] == 2 * CONTEXT
    assert found["fake"]["decode"]["positions"] == CONTEXT
    assert found["fake"]["prompt"]["mean"] == 0
    assert list(tmp_path.iterdir()) == []
    assert len(real_text()) > 4 * CONTEXT * 6


LLAMA = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=128,
    norm_eps=1e-5,
    query_scale=8**-0.5,
    rope_theta=5000.0,
    rope_theta_local=5000.0,
    rope_scaling=RopeScaling(kind="llama3", factor=4.0),
)


def test_hf_config_reads_back():
    assert read_config(hf_config(LLAMA)) == LLAMA


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_hf_folder_holds_the_weights_of_the_file(architecture, tmp_path):
    config = tiny_config(architecture)
    file = write_gguf_model(tmp_path / "tiny.gguf", config, random_weights(config))
    folder = tmp_path / "hf"
    folder.mkdir()
    write_hf_folder(file, folder)
    ours, theirs = open_model(file), open_model(folder)
    try:
        assert ours.names == theirs.names
        for name in ours.names:
            exact = ours.tensor(name, torch.bfloat16)
            assert torch.equal(exact, theirs.tensor(name, torch.bfloat16)), name
        read = sum(ours.quantised(name)[1].nbytes for name in ours.names)
        unread = 0 if ours.config.tie_embeddings else ours.quantised(EMBEDDING)[1].nbytes
        assert bandwidth_module.bytes_per_token(file) == read - unread
    finally:
        ours.close()
        theirs.close()


EMBEDDING = "model.embed_tokens.weight"


def test_no_folder_for_an_architecture_that_is_not_written():
    with pytest.raises(UnsupportedModel, match="gemma3"):
        hf_config(dataclasses.replace(LLAMA, architecture="gemma3"))


def test_cores():
    assert 1 <= usable_cores() <= 4096
    assert len(set(core_ids())) == usable_cores()
