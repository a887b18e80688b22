"""Promise P1 on the native kernels: tokens and their log-probs, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.op_cases import ISAS
from support.quantised_models import quantised_model

from stolon.kernels import native_ops
from stolon.srt.engine import Engine

PREFIX = (
    "All of these prompts begin with this one long sentence, which is longer than a block. " * 2
)
PROMPTS = [PREFIX + tail for tail in ("", "One", "Two more", "Two more words", "x" * 90)]
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


def engine(architecture: str, isa: str, *, threads: int = 2, **options: Any) -> Engine:
    options = {"kv_tokens": 4096, "context_length": 1024, "max_running": 16} | options
    return Engine.from_parts(
        quantised_model(architecture),  # type: ignore[arg-type]
        ByteTokenizer(),
        ops=native_ops(threads, isa),
        **options,
    )


def outcome(engine: Engine, prompts: list[str], *, max_tokens: int = 20) -> list[Any]:
    """What was generated: tokens and exact log-probs, of seeded draws."""
    outputs = engine.generate(
        prompts,
        max_tokens=max_tokens,
        ignore_eos=True,
        temperature=1.0,
        seed=5,
        return_logprob=True,
    )
    engine.check_integrity()
    return [(o.token_ids, o.logprobs) for o in outputs]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reuse_is_exact(architecture: str, isa: str) -> None:
    cold = []
    for prompt in PROMPTS:
        with engine(architecture, isa, threads=1) as alone:
            cold += outcome(alone, [prompt])
    with engine(architecture, isa) as shared:
        assert outcome(shared, PROMPTS) == cold  # batched, a prefix shared
        assert outcome(shared, PROMPTS) == cold  # warm
        assert outcome(shared, PROMPTS[::-1]) == cold[::-1]
        assert shared.stats().cached_tokens > 0
    with engine(architecture, isa, step_tokens=33, threads=4) as chunked:
        assert outcome(chunked, PROMPTS) == cold


@pytest.mark.parametrize("isa", ISAS)
def test_retraction_is_exact(isa: str) -> None:
    prompts = [f"{n} sequences in a pool that holds two" for n in range(6)]
    with engine("llama", isa) as roomy:
        wanted = outcome(roomy, prompts, max_tokens=90)
    with engine("llama", isa, kv_tokens=256, context_length=200, threads=1) as tight:
        assert outcome(tight, prompts, max_tokens=90) == wanted
        assert tight.stats().retractions > 0


@pytest.mark.parametrize("isa", ISAS)
def test_samples_of_one_prompt_are_those_of_many(isa: str) -> None:
    """n samples fork from one prompt; alone each is the same."""
    options: dict[str, Any] = {
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 1.0,
        "return_logprob": True,
        "seed": 9,
    }
    with engine("llama", isa) as forked, engine("llama", isa, step_tokens=16) as again:
        many = forked.generate(PROMPTS[1], n=8, **options)
        few = again.generate(PROMPTS[1], n=3, **options)
        assert len({tuple(output.token_ids) for output in many}) > 1
        assert [o.token_ids for o in few] == [o.token_ids for o in many[:3]]
        assert [o.logprobs for o in few] == [o.logprobs for o in many[:3]]
