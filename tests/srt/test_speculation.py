"""Prompt-lookup speculation saves steps and changes nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace
from support.byte_tokenizer import ByteTokenizer
from support.engines import collect, hash_engine
from support.hash_model import HashRunner, copying_logits
from support.quantised_models import quantised_model

from stolon.errors import InvalidRequest
from stolon.kernels import native_ops
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Event,
    Failed,
    Gen,
    GrammarSpec,
    LogprobSpec,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Text,
    Usage,
)
from stolon.srt.speculation import PRIOR_BASE, PRIOR_RATES, NgramIndex, Rates, StepCost, Words

WORDS = Words(ByteTokenizer().token_bytes)
COPIED = "the quick brown fox jumps over the lazy dog; " * 3 + "the quick"


@pytest.fixture(autouse=True)
def growth(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a row costs does not depend on the machine that tests; gives what would be learned."""
    learned = StepCost.growth
    monkeypatch.setattr(StepCost, "growth", lambda self, rows: 1 / (rows + 9))
    return learned


def copying_engine(**options: Any) -> Engine:
    """An engine whose model mostly goes on as its context did before."""
    speculation = options.pop("speculation", "auto")
    runner = HashRunner(**{"num_slots": 4096, "context": 512, "max_running": 16} | options)
    runner.logits = copying_logits
    return hash_engine(runner=runner, speculation=speculation)


def without_usage(events: list[Event]) -> list[Event]:
    """What must not depend on speculation: everything but times and counts of steps.

    When one sample fails, the others are dropped wherever they are.
    """
    if isinstance(events[-1], Failed):
        return [replace(events[-1], message="")]
    plain: list[Event] = []
    for event in events:
        if isinstance(event, SegmentDone):
            event = replace(event, result=replace(event.result, usage=Usage()))
        elif isinstance(event, SampleDone):
            event = replace(event, cached_tokens=0)
        plain.append(event)
    return sorted(plain, key=lambda event: getattr(event, "sample", -1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copying_takes_fewer_steps(temperature: float) -> None:
    outputs, steps = [], []
    for speculation in ("off", "auto"):
        with copying_engine() as engine:
            outputs.append(
                engine.generate(
                    COPIED,
                    max_tokens=80,
                    temperature=temperature,
                    seed=4,
                    ignore_eos=True,
                    speculation=speculation,
                )
            )
            steps.append(engine.stats().steps)
            engine.check_integrity()
    plain, guessed = outputs
    assert guessed.token_ids == plain.token_ids
    assert guessed.text == plain.text
    assert steps[1] < 0.75 * steps[0]
    assert plain.usage.drafted_tokens == 0
    assert 0 < guessed.usage.accepted_tokens <= guessed.usage.drafted_tokens
    assert steps[0] - steps[1] == guessed.usage.accepted_tokens
    assert guessed.usage.sampled_tokens == 80


SCHEMA = (
    '{"type":"object","properties":{"the name":{"type":"string","maxLength":12},"the value":'
    '{"enum":["the fox","the dog","other"]}},"required":["the name","the value"],'
    '"additionalProperties":false}'
)
GRAMMARS = (
    None,
    None,
    GrammarSpec(kind="regex", text="(the |quick |brown |fox |dog |[a-z ]){1,60}"),
    GrammarSpec(kind="json_schema", text=SCHEMA),
    GrammarSpec(kind="choice", text='["the quick brown fox", "the quick brown dog", "no"]'),
)


def random_request(rng: random.Random, rid: str) -> Request:
    """Literals that repeat, then generations of every kind."""
    segments: list[Any] = [Text(rng.choice(("", "x", "and ")) + COPIED[: rng.randint(20, 100)])]
    for _ in range(rng.randint(1, 3)):
        sampling = Sampling(
            max_tokens=rng.choice((None, 0, 1, 7, 40)) if len(segments) < 4 else 20,
            temperature=rng.choice((0.0, 0.6, 1.0)),
            top_k=rng.choice((0, 0, 5)),
            top_p=rng.choice((1.0, 0.9)),
            presence_penalty=rng.choice((0.0, 0.0, 0.5)),
            frequency_penalty=rng.choice((0.0, 0.0, 1.5)),
            repetition_penalty=rng.choice((1.0, 1.0, 1.3)),
            stop=rng.choice(((), (), ("jum",), ("fox j", "gg"))),
            stop_regex=rng.choice(((), (), ("[xyz] d",))),
            stop_token_ids=rng.choice(((), (), (ord("z"),))),
            ignore_eos=rng.random() < 0.8,
            include_stop=rng.random() < 0.3,
            seed=rng.randrange(1000),
            jump_forward=rng.choice(("inject", "verify", "off")),
            close_at_budget=rng.random() < 0.3,
        )
        segments += [
            Gen(
                sampling=sampling,
                grammar=rng.choice(GRAMMARS),
                logprobs=rng.choice(
                    (None, None, LogprobSpec(top=2), LogprobSpec(mode="processed"))
                ),
                heal=rng.random() < 0.4,
            ),
            Text(rng.choice((" the quick", "; ", " "))),
        ]
    return Request(rid=rid, segments=segments, n=rng.choice((1, 1, 3)), stream=rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_come_out_the_same(seed: int) -> None:
    """Also when the pool is so small that sequences are retracted, and steps so short that drafts are cut."""
    events = []
    for speculation in ("off", "auto"):
        rng = random.Random(seed)
        small = seed % 2 == 1
        runner = HashRunner(
            num_slots=rng.randint(360, 500) if small else 4096, context=350, max_running=4
        )
        runner.logits = copying_logits
        step_tokens = rng.choice((3, 20, 512))
        with hash_engine(runner=runner, step_tokens=step_tokens, speculation=speculation) as engine:
            requests = [random_request(rng, str(i)) for i in range(3)]
            events.append([without_usage(collect(engine, request)) for request in requests])
            engine.check_integrity()
            accepted = engine.stats().accepted_tokens
    assert events[0] == events[1]
    if seed == 0:
        assert accepted > 0


def test_together_in_a_pool_that_is_too_small() -> None:
    results = []
    for speculation in ("off", "auto"):
        with copying_engine(num_slots=400, context=300, speculation=speculation) as engine:
            outputs = engine.generate(
                [f"{i} {COPIED[:90]}" for i in range(12)],
                n=2,
                max_tokens=90,
                temperature=0.8,
                seed=1,
                ignore_eos=True,
                speculation=speculation,
            )
            results.append([[o.token_ids for o in samples] for samples in outputs])
            engine.check_integrity()
            stats = engine.stats()
            assert stats.retractions > 0
            assert (stats.accepted_tokens > 0) == (speculation == "auto")
    assert results[0] == results[1]


def test_rejected_tokens_are_not_cached() -> None:
    cached = []
    for speculation in ("off", "auto"):
        with copying_engine() as engine:
            engine.generate(COPIED, max_tokens=60, temperature=1.0, seed=2, speculation=speculation)
            stats = engine.stats()
            assert (stats.drafted_tokens > stats.accepted_tokens) == (speculation == "auto")
            assert stats.kv_used == stats.kv_cached == stats.kv_evictable
            cached.append(stats.kv_cached)
    # The last token's keys may be known: where a draft went on to it.
    assert cached[0] <= cached[1] <= cached[0] + 1


def test_off_for_an_engine_or_a_request() -> None:
    with copying_engine() as engine:
        engine.generate(COPIED, max_tokens=20, speculation="off")
        assert engine.stats().drafted_tokens == 0
        engine.generate(COPIED, max_tokens=20, temperature=0.0)
        assert engine.stats().drafted_tokens > 0
        with pytest.raises(InvalidRequest, match="speculation"):
            engine.generate(COPIED, max_tokens=20, speculation="always")
    runner = HashRunner(num_slots=1024, context=512)
    runner.logits = copying_logits
    with hash_engine(runner=runner, speculation="off") as engine:
        engine.generate(COPIED, max_tokens=20, temperature=0.0)
        assert engine.stats().drafted_tokens == 0


def test_guesses_stop_where_they_are_wrong() -> None:
    """A model that never copies costs few drafted rows, after some that were wrong."""
    with hash_engine(num_slots=4096) as engine:
        for i in range(6):
            engine.generate(f"{i}" + "ab" * 60, max_tokens=100, ignore_eos=True, seed=i)
        before = engine.stats().drafted_tokens
        output = engine.generate("c" + "ab" * 60, max_tokens=300, ignore_eos=True, top_k=3, seed=1)
        assert len(output.token_ids) == 300
        assert engine.stats().drafted_tokens - before < 30


def test_what_a_grammar_refuses_is_not_drafted() -> None:
    with copying_engine() as engine:
        for regex, drafted in (("[a-z]{1,5}", 0), ("[a-z1]{1,5}", 1)):
            output = engine.generate("q1q1q1q", regex=regex, max_tokens=2, temperature=0.0)
            assert output.usage.drafted_tokens == drafted


def test_the_stream_has_every_token() -> None:
    gen = Gen(sampling=Sampling(max_tokens=60, temperature=0.0, ignore_eos=True))
    with copying_engine() as engine:
        events = collect(
            engine, Request(rid="s", segments=[Text(COPIED), gen, Text(";")], stream=True)
        )
        accepted = engine.stats().accepted_tokens
    deltas = [event for event in events if event.__class__.__name__ == "Delta"]
    assert accepted > 10
    assert len(deltas) > 50


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_bit_for_bit_on_the_native_kernels(architecture: Any) -> None:
    """Log-probs to the last bit, with the rows of a draft in one run."""
    results = []
    for speculation in ("off", "auto"):
        with Engine.from_parts(
            quantised_model(architecture),
            ByteTokenizer(),
            ops=native_ops(2, "portable"),
            kv_tokens=4096,
            context_length=1024,
            max_running=16,
            speculation=speculation,
        ) as engine:
            outputs = engine.generate(
                [COPIED, "ab" * 40],
                max_tokens=60,
                temperature=0.7,
                top_k=2,
                seed=5,
                ignore_eos=True,
                return_logprob=True,
            )
            results.append([(o.token_ids, o.logprobs) for o in outputs])
            engine.check_integrity()
            if speculation == "auto":
                assert engine.stats().drafted_tokens > 0
    assert results[0] == results[1]


def test_the_longest_run_that_occurred_is_found() -> None:
    index = NgramIndex(WORDS)
    tokens = [1, 2, 3, 4, 9, 5, 3, 4, 7, 1, 2, 3, 4]
    # Four tokens beat the later occurrence of two; the match grows as far as it agrees.
    assert index.find(tokens, tokens[-8:]) == (4, 4)
    tokens += [9, 5, 3, 4]
    assert index.find(tokens, tokens[-8:]) == (8, 8)
    assert index.find(tokens, [*tokens[-7:], 7]) == (9, 8)
    assert index.find(tokens, [8, 2]) == (11, 1)
    assert index.find(tokens, [8]) is None
    # A stop cut the end off: what was found there is no longer said.
    tokens[10:] = [5, 5, 5]
    assert index.find(tokens, [1, 2]) is None
    assert NgramIndex(WORDS).find([1], [1]) is None


def test_a_word_is_found_with_and_without_a_blank_before_it() -> None:
    """As " Maria Lopez" in a text and "Maria Lopez" in JSON."""
    words = Words([b"a", b" Maria", b" Lopez", b'"', b"Maria", b" ", b"  "])
    tokens = [0, 1, 2, 3, 4]
    assert NgramIndex(words).find(tokens, [3, 4]) == (2, 1)
    assert NgramIndex(words).find([*tokens, 2, 3, 1], [2, 3, 1]) == (5, 3)
    # Blanks alone are words of their own.
    assert NgramIndex(words).find([5, 2, 6], [6]) is None


def test_an_index_that_grew_is_that_of_the_whole() -> None:
    rng = random.Random(3)
    tokens = [rng.randrange(4) for _ in range(300)]
    grown = NgramIndex(WORDS)
    for end in range(1, len(tokens) + 1):
        tail = tokens[max(0, end - 8) : end]
        found = grown.find(tokens[:end], tail)
        assert found == NgramIndex(WORDS).find(tokens[:end], tail)
        if found is not None:
            at, length = found
            assert tokens[at - length : at] == tail[-length:]


def test_the_cost_of_a_row_is_learned(growth: Any) -> None:
    """A step of n rows takes 4 + n, now and then ten times as long."""
    cost, rng = StepCost(), random.Random(1)
    assert growth(cost, 1) == pytest.approx(1 / (1 + PRIOR_BASE))
    for _ in range(400):
        rows = rng.randint(1, 12)
        cost.observe(rows, (4 + rows) * rng.uniform(0.8, 1.2) * (10 if rng.random() < 0.02 else 1))
    assert growth(cost, 8) == pytest.approx(1 / 12, rel=0.4)
    for _ in range(400):
        rows = rng.randint(1, 12)
        cost.observe(rows, (100 + rows) * rng.uniform(0.99, 1.01))
    assert growth(cost, 8) < 0.03


def test_a_step_of_no_rows_has_a_cost(growth: Any) -> None:
    """Also where a step takes as long as its rows do."""
    cost = StepCost()
    for rows in range(1, 100):
        cost.observe(rows, 0.001 * rows)
    assert 0 < growth(cost, 0) <= 1


def test_rates_follow_what_happens() -> None:
    parent = Rates()
    child = Rates(parent)
    for _ in range(30):
        child.update(3, True)
        child.update(2, False)
    assert child.values[3] > 0.95
    assert child.values[2] < 0.05
    assert PRIOR_RATES[3] < parent.values[3] < child.values[3]
    assert Rates(parent).values == parent.values
