"""Promise P1: cold, warm, batched, chunked, forked and retracted runs give the same output.

The model is a hash of the whole context (see support.hash_model), so equality here is exact and a single
wrong slot shows. The same is asserted on a real architecture, in float32, for tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from support.byte_tokenizer import ByteTokenizer
from support.engines import collect, hash_engine
from support.hash_model import HashRunner, context_logits
from support.tiny_models import tiny_model

from stolon.kernels import RaggedBatch
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Delta,
    Gen,
    GenResult,
    LogprobSpec,
    Request,
    Sampling,
    SegmentDone,
    Text,
    Usage,
)

PREFIX = "All of these prompts begin with this one long sentence. "
PROMPTS = [PREFIX + tail for tail in ("", "One", "Two more", "Two more words", "x" * 90)]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 3, "repetition_penalty": 1.2},
]


def tokens(
    engine: Engine, prompts: list[str], *, max_tokens: int = 24, **sampling: Any
) -> list[list[int]]:
    outputs = engine.generate(prompts, max_tokens=max_tokens, ignore_eos=True, **sampling)
    engine.check_integrity()
    return [output.token_ids for output in outputs]


@pytest.fixture(params=SAMPLINGS, ids=["greedy", "seeded", "filtered"])
def sampling(request: pytest.FixtureRequest) -> Any:
    return request.param


def alone(prompt: str, **sampling: Any) -> list[int]:
    with hash_engine() as engine:
        return tokens(engine, [prompt], **sampling)[0]


def test_greedy_output_is_what_the_model_says() -> None:
    tokenizer = ByteTokenizer()
    context = tokenizer.encode(PROMPTS[1])
    expected: list[int] = []
    for _ in range(24):
        expected.append(int(torch.argmax(context_logits([*context, *expected], 288))))
    assert alone(PROMPTS[1], temperature=0.0) == expected


def test_batched_equals_alone(sampling: dict[str, Any]) -> None:
    with hash_engine() as engine:
        assert tokens(engine, PROMPTS, **sampling) == [alone(p, **sampling) for p in PROMPTS]


def test_warm_equals_cold(sampling: dict[str, Any]) -> None:
    with hash_engine() as engine:
        cold = tokens(engine, PROMPTS, **sampling)
        assert tokens(engine, PROMPTS, **sampling) == cold
        assert tokens(engine, PROMPTS[::-1], **sampling) == cold[::-1]
        stats = engine.stats()
        assert stats.cached_tokens > 0.8 * stats.prompt_tokens / 2


@pytest.mark.parametrize("step_tokens", [1, 7, 64])
def test_chunked_equals_whole(sampling: dict[str, Any], step_tokens: int) -> None:
    with hash_engine(step_tokens=step_tokens) as engine:
        assert tokens(engine, PROMPTS, **sampling) == [alone(p, **sampling) for p in PROMPTS]


def test_retracted_equals_alone(sampling: dict[str, Any]) -> None:
    """Fifty requests share a pool that holds two of them."""
    prompts = [f"{i:02d} {PROMPTS[i % 3]}" for i in range(50)]
    # Each grows by far more than admission promises it, so two that run together must collide.
    with hash_engine(num_slots=270, context=220) as engine:
        result = tokens(engine, prompts, max_tokens=100, **sampling)
        assert engine.stats().retractions > 0
    with hash_engine(num_slots=20_000) as engine:
        assert tokens(engine, prompts, max_tokens=100, **sampling) == result
        assert engine.stats().retractions == 0


def test_samples_equal_single_requests() -> None:
    """Sample i of n draws from its own stream, whatever n is, and shares the prompt's prefill."""
    with hash_engine() as engine:
        many = engine.generate(PROMPTS[3], n=6, seed=5, max_tokens=16, ignore_eos=True)
        few = engine.generate(PROMPTS[3], n=2, seed=5, max_tokens=16, ignore_eos=True)
        assert isinstance(many, list)
        assert isinstance(few, list)
        assert [o.token_ids for o in few] == [o.token_ids for o in many[:2]]
        assert len({tuple(o.token_ids) for o in many}) == 6
        assert engine.stats().computed_tokens <= len(PROMPTS[3]) + 2 * 8


def test_a_cached_prompt_costs_one_token() -> None:
    with hash_engine() as engine:
        prompt = PROMPTS[4]
        engine.generate(prompt, max_tokens=1, temperature=0.0)
        output = engine.generate(prompt, max_tokens=1, temperature=0.0)
        assert output.usage.computed_tokens == 1
        assert output.usage.cached_tokens == output.usage.prompt_tokens - 1


def test_salts_do_not_share() -> None:
    with hash_engine() as engine:
        engine.generate(PROMPTS[4], max_tokens=1, salt="a")
        other = engine.generate(PROMPTS[4], max_tokens=1, salt="b")
        assert other.usage.cached_tokens == 0


def test_siblings_wait_for_a_shared_prefix() -> None:
    """Sent together, requests with one long prefix compute it once."""
    with hash_engine(step_tokens=16) as engine:
        engine.generate([PREFIX + str(i) for i in range(8)], max_tokens=4, ignore_eos=True)
        shared = len(ByteTokenizer().encode(PREFIX))
        assert engine.stats().computed_tokens < shared + 8 * 8


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_real_architecture_in_float32(architecture: Any, sampling: dict[str, Any]) -> None:
    def run(**options: Any) -> list[list[int]]:
        with Engine.from_parts(tiny_model(architecture), ByteTokenizer(), **options) as engine:
            cold = tokens(engine, PROMPTS, **sampling)
            assert tokens(engine, PROMPTS, **sampling) == cold
            return cold

    whole = run()
    assert run(step_tokens=16) == whole
    assert run(kv_tokens=400, context_length=200) == whole


@pytest.mark.parametrize("stop", [(), ("j",), ("ab", "<|im")])
def test_streamed_equals_unstreamed(sampling: dict[str, Any], stop: tuple[str, ...]) -> None:
    """Promise P8, through the whole engine: pieces, their tokens and their log-probs add up."""
    gen = Gen(
        sampling=Sampling(max_tokens=40, ignore_eos=True, stop=stop, **sampling),
        logprobs=LogprobSpec(top=2),
    )
    segments = [Text(PROMPTS[1]), gen, Text(" and "), gen]
    with hash_engine() as engine:
        whole = collect(engine, Request(rid="w", segments=segments))
        streamed = collect(engine, Request(rid="s", segments=segments, stream=True))
        engine.check_integrity()
    results = [e.result for e in streamed if isinstance(e, SegmentDone)]
    assert [replace(r, usage=Usage()) for r in results] == [
        replace(e.result, usage=Usage()) for e in whole if isinstance(e, SegmentDone)
    ]
    for index, result in zip((1, 3), results, strict=True):
        deltas = [e for e in streamed if isinstance(e, Delta) and e.segment == index]
        assert isinstance(result, GenResult)
        assert "".join(d.text for d in deltas) == result.text
        assert [t for d in deltas for t in d.token_ids] == result.token_ids
        assert [p for d in deltas for p in d.logprobs or []] == result.logprobs
        assert len(deltas) > 1 or len(result.token_ids) < 3


def test_neighbouring_tokens_have_neighbouring_slots() -> None:
    """Sequences that decode together do not interleave in the cache."""
    runner = HashRunner(num_slots=2048, context=256)
    prompts = [f"{i} is alone" for i in range(8)]
    slots: dict[int, dict[int, int]] = {}  # of each sequence, by position

    def watch(batch: RaggedBatch) -> None:
        # Every step counts, also those in which a neighbour's prompt is computed or drafts are.
        rows = [
            row
            for row, count in zip(batch.table_rows, batch.q_lens, strict=True)
            for _ in range(int(count))
        ]
        for row, position, slot in zip(rows, batch.positions, batch.write_slots, strict=True):
            if position > len(prompts[0]):
                slots.setdefault(int(row), {})[int(position)] = int(slot)

    runner.before_forward = watch
    with hash_engine(runner=runner) as engine:
        engine.generate(prompts, max_tokens=64, ignore_eos=True)
        engine.check_integrity()
    steps = [of[at + 1] - of[at] for of in slots.values() for at in of if at + 1 in of]
    assert len(steps) > 400
    assert sum(step == 1 for step in steps) > 0.9 * len(steps)


def test_a_shared_prefix_is_room_for_all_that_share_it() -> None:
    """Eight cached prompts run at once in a pool that holds their common part once, not eight times."""
    shared, count, new = "s" * 1500, 8, 150
    prompts = [shared + f"{i}" * 10 for i in range(count)]
    slots = 1500 + count * (10 + new + 33)
    with hash_engine(num_slots=slots, context=2048) as engine:
        tokens(engine, prompts, max_tokens=1)
        before = engine.stats().steps
        tokens(engine, prompts, max_tokens=new)
        # Two waves would take twice as many; that prompts arrive one after the other takes a few.
        assert engine.stats().steps - before < 2 * new
