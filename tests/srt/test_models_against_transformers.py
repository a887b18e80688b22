"""Every architecture against Hugging Face transformers: same file, same logits in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.stepper import Stepper
from torch import Tensor

from stolon.kernels import reference_ops, torch_cpu_ops
from stolon.srt.loaders import open_model
from stolon.srt.model_runner import ModelRunner

SIZES: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "llama-all-heads": ("Llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": 7, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 20,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
IDS = torch.randint(0, 200, (45,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(params=CASES, scope="module")
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tensor]:
    """A folder with a random model, and its logits for IDS."""
    family, changes = CASES[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes))
    config._attn_implementation = "eager"
    name = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}ForCausalLM"
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Fresh norms are constant and fresh biases zero; random ones show a mix-up.
            parameter.add_(torch.randn(parameter.shape) * (0.3 if parameter.dim() == 1 else 0.08))
        logits = model(torch.tensor([IDS])).logits[0]
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder, safe_serialization=True)
    return folder, logits


def test_logits_are_those_of_transformers(saved: tuple[Path, Tensor]) -> None:
    folder, wanted = saved
    source = open_model(folder)
    runner = ModelRunner(source, reference_ops(), num_slots=200, max_context=64, table_rows=4)
    source.close()
    steps = Stepper(runner)
    torch.testing.assert_close(steps.step([(steps.open(), IDS)]), wanted, rtol=1e-4, atol=1e-4)
    # A chunk, then token by token, beside another sequence.
    row, other = steps.open(), steps.open()
    got = [steps.step([(other, IDS[:4]), (row, IDS[:30])])[4:]]
    got += [steps.step([(row, [token]), (other, [token])])[:1] for token in IDS[30:]]
    torch.testing.assert_close(torch.cat(got), wanted, rtol=1e-4, atol=1e-4)


def test_torch_cpu_is_close(saved: tuple[Path, Tensor]) -> None:
    folder, wanted = saved
    source = open_model(folder)
    runner = ModelRunner(source, torch_cpu_ops(), num_slots=100, max_context=64, table_rows=4)
    source.close()
    steps = Stepper(runner)
    got = steps.step([(steps.open(), IDS)])
    assert torch.cosine_similarity(got, wanted, dim=1).min() > 0.995
