"""select: every choice scored exactly, in one step, over the trie of their tokens."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from msgspec import structs
from support.byte_tokenizer import ByteTokenizer
from support.engines import collect, hash_engine
from support.hash_model import HashRunner, context_logits

from stolon.srt.protocol import (
    Failed,
    Gen,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    SelectResult,
    Text,
)
from stolon.srt.selecting import ChoiceTrie

TOKENIZER = ByteTokenizer()
CHOICES = ("cat", "category", "dog", "do", "a", "catalogue", "zebra crossing")


def exhaustive(context: list[int], choice: list[int]) -> list[float]:
    """Log-prob of each token of a choice, one context after another."""
    scores = []
    for i, token in enumerate(choice):
        logprobs = torch.log_softmax(context_logits([*context, *choice[:i]], 288), -1)
        scores.append(float(logprobs[token]))
    return scores


def select(engine: Any, text: str, choices: tuple[str, ...], **options: Any) -> SelectResult:
    segment = Select(choices=choices, **options)
    events = collect(engine, Request(rid=text, segments=[Text(text), segment]))
    results = [event.result for event in events if isinstance(event, SegmentDone)]
    assert isinstance(results[0], SelectResult), events
    return results[0]


@pytest.mark.parametrize("num_slots", [1024, 60])
@pytest.mark.parametrize("text", ["Q:", "a long enough context, "])
def test_scores_equal_exhaustive_scoring(text: str, num_slots: int) -> None:
    with hash_engine(num_slots=num_slots, context=56) as engine:
        result = select(engine, text, CHOICES)
        engine.check_integrity()
    context = TOKENIZER.encode(text)
    for score in result.scores:
        expected = exhaustive(context, TOKENIZER.encode(score.text))
        assert score.token_logprobs == pytest.approx(expected, abs=1e-5)
        assert score.logprob == pytest.approx(sum(expected), abs=1e-4)
        assert score.normalized == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    best = max(range(len(CHOICES)), key=lambda i: result.scores[i].normalized)
    assert (result.index, result.text) == (best, CHOICES[best])


def test_rows_are_the_trie_s_inner_nodes_and_one_step_is_enough() -> None:
    runner = HashRunner(num_slots=1024, context=256)
    with hash_engine(runner=runner) as engine:
        select(engine, "pick: ", CHOICES)
    inner = {
        tuple(TOKENIZER.encode(choice)[:i])
        for choice in CHOICES
        for i in range(1, len(TOKENIZER.encode(choice)))
    }
    assert runner.rows == len(TOKENIZER.encode("pick: ")) + len(inner)
    assert len(runner.steps) == 1


def test_single_token_choices_cost_nothing_more() -> None:
    runner = HashRunner(num_slots=1024, context=256)
    with hash_engine(runner=runner) as engine:
        select(engine, "pick: ", ("a", "b", "c"))
    assert runner.rows == len(TOKENIZER.encode("pick: "))


def test_many_choices_take_several_steps_and_agree() -> None:
    rng = random.Random(1)
    choices = tuple({"".join(rng.choice("abcdef") for _ in range(8)) for _ in range(120)})
    with hash_engine(num_slots=2048) as engine:
        result = select(engine, "many", choices)
    context = TOKENIZER.encode("many")
    for score in result.scores[::10]:
        expected = exhaustive(context, TOKENIZER.encode(score.text))
        assert score.token_logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bos", [False, True])
def test_unconditional(bos: bool) -> None:
    from stolon.srt.engine import Engine

    runner = HashRunner(num_slots=1024, context=256)
    with Engine.from_runner(runner, ByteTokenizer(add_bos=bos)) as engine:
        result = select(engine, "Q: ", CHOICES, method="unconditional_likelihood_normalized")
        engine.check_integrity()
    context = [256] * bos + TOKENIZER.encode("Q: ")
    for score in result.scores:
        choice = TOKENIZER.encode(score.text)
        with_context = exhaustive(context, choice)
        alone = exhaustive([256], choice) if bos else [0.0, *exhaustive(choice[:1], choice[1:])]
        assert score.unconditional == pytest.approx(sum(alone), abs=1e-4)
        expected = sum(a - b for a, b in zip(with_context, alone, strict=True)) / len(choice)
        assert score.normalized == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("choices", [("a", "b"), ("a", "bcd", "c"), ("zz", "zy", "q")])
@pytest.mark.parametrize(
    "method", ["unconditional_likelihood_normalized", "token_length_normalized"]
)
def test_choices_of_one_token_in_every_method(choices: tuple[str, ...], method: str) -> None:
    with hash_engine() as engine:
        result = select(engine, "one: ", choices, method=method)
        for score in result.scores:
            expected = exhaustive(TOKENIZER.encode("one: "), TOKENIZER.encode(score.text))
            assert score.token_logprobs == pytest.approx(expected, abs=1e-5)


def test_greedy_selection_follows_the_best_token_at_each_position() -> None:
    with hash_engine() as engine:
        result = select(engine, "G: ", CHOICES, method="greedy_token_selection")
    rows = {score.text: score.token_logprobs for score in result.scores}
    alive = list(CHOICES)
    for i in range(max(map(len, rows.values()))):
        value = {c: rows[c][i] if i < len(rows[c]) else sum(rows[c]) / len(rows[c]) for c in alive}
        alive = [c for c in alive if value[c] == max(value.values())]
    assert result.text == alive[0]


def test_healing_encodes_choices_with_the_end_of_the_literal() -> None:
    with hash_engine() as engine:
        result = select(engine, "is ", ("the cat", "then"), heal=True)
        assert TOKENIZER.decode(result.token_ids) == " " + result.text
        assert result.token_ids[0] == TOKENIZER.encode(" the")[0]
        plain = select(engine, "is ", ("the cat", "then"))
        assert TOKENIZER.decode(plain.token_ids) == plain.text


def test_what_follows_a_select_sees_the_winner() -> None:
    gen = Gen(sampling=Sampling(max_tokens=8, temperature=0.0, ignore_eos=True))
    segments = [Text("A: "), Select(choices=CHOICES), Text(" so "), gen]
    with hash_engine() as engine:
        events = collect(engine, Request(rid="r", segments=segments, n=2))  # type: ignore[arg-type]
        done = [event for event in events if isinstance(event, SampleDone)]
        picked = next(e.result for e in events if isinstance(e, SegmentDone))
        prompt = TOKENIZER.encode("A: ") + picked.token_ids + TOKENIZER.encode(" so ")
        again = engine.generate(input_ids=prompt, max_tokens=8, temperature=0.0, ignore_eos=True)
        assert done[0].token_ids == done[1].token_ids == prompt + again.token_ids
        engine.check_integrity()


def test_trie_layout() -> None:
    trie = ChoiceTrie([[1, 2, 3], [1, 2, 4, 5], [6], [1]])
    assert trie.rows == 3
    assert trie.paths == [[-1, 0, 1], [-1, 0, 1, 2], [-1], [-1]]
    assert trie.runs[0].parent == -1
    assert sum(len(run.tokens) for run in trie.runs) == 3


def test_sum_compares_whole_choices() -> None:
    with hash_engine() as engine:
        result = select(engine, "S: ", CHOICES, method="sum")
        means = select(engine, "S: ", CHOICES)
    for score, other in zip(result.scores, means.scores, strict=True):
        assert score.normalized == score.logprob == other.logprob
        assert other.normalized == pytest.approx(other.logprob / len(other.token_ids))
    assert result.scores[result.index].logprob == max(s.logprob for s in result.scores)


@pytest.mark.parametrize("method", ["sum", "token_length_normalized"])
@pytest.mark.parametrize("temperature", [0.7, 3.0])
def test_draws_follow_the_scores(method: str, temperature: float) -> None:
    choices = ("cat", "dog", "do", "a")
    draws = 1500
    with hash_engine(num_slots=4096) as engine:
        segment = Select(choices=choices, method=method, temperature=temperature, seed=3)  # type: ignore[arg-type]
        counts = dict.fromkeys(choices, 0)
        scores: dict[str, float] = {}
        for part in range(draws // 100):
            one = Select(**{**structs.asdict(segment), "seed": part})
            request = Request(rid=str(part), segments=[Text("D: "), one], n=100)
            for event in collect(engine, request):
                if isinstance(event, SegmentDone) and isinstance(event.result, SelectResult):
                    counts[event.result.text] += 1
                    scores = {s.text: s.normalized for s in event.result.scores}
        engine.check_integrity()
    weights = {text: math.exp(score / temperature) for text, score in scores.items()}
    for text, count in counts.items():
        chance = weights[text] / sum(weights.values())
        assert abs(count - draws * chance) < 5 * math.sqrt(draws * chance * (1 - chance)) + 1


def test_a_draw_depends_on_seed_and_sample_alone() -> None:
    options: dict[str, Any] = {"method": "sum", "temperature": 20.0, "seed": 9}

    def run(n: int, slots: int) -> list[str]:
        with hash_engine(num_slots=slots, context=56) as engine:
            segment = Select(choices=CHOICES, **options)
            events = collect(engine, Request(rid="r", segments=[Text("Q: "), segment], n=n))
        done = [event for event in events if isinstance(event, SegmentDone)]
        return [event.result.text for event in sorted(done, key=lambda event: event.sample)]

    four = run(4, 2048)
    assert run(4, 90) == four
    assert run(1, 2048) == four[:1]
    assert len(set(run(12, 2048))) > 1


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1.0, "method": "greedy_token_selection"}, "temperature"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_draws_are_refused(options: dict[str, Any], param: str) -> None:
    with hash_engine() as engine:
        request = Request(rid="r", segments=[Text("Q: "), Select(choices=CHOICES, **options)])
        (failed,) = collect(engine, request)
    assert isinstance(failed, Failed)
    assert failed.param == param
