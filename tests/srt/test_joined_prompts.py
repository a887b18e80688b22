"""Prompts that are computed in the same step: every distinct token once, and the answers of prompts alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.engines import collect, hash_engine
from support.hash_model import HashRunner

from stolon.kernels import RaggedBatch
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Event,
    Failed,
    Gen,
    GenResult,
    LogprobSpec,
    PromptLogprobs,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    SelectResult,
    Tokens,
)

START = list(range(40, 70))
LONG = [*START, 1, 2, 3]
PROMPTS = [
    [6] * 10,
    LONG,
    [*START, 1, 2, 4],
    LONG,  # the whole of another
    [*START, 1],  # a beginning of another
    START[:3] + [5] * 20,  # less in common than is worth waiting for
]
Answers = list[GenResult | SelectResult]


def gen(max_tokens: int = 1, seed: int = 3) -> Gen:
    sampling = Sampling(max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_eos=True)
    return Gen(sampling=sampling, logprobs=LogprobSpec())


def requests(prompts: list[list[int]], last: Gen | Select, **options: int) -> list[Request]:
    return [
        Request(rid=str(i), segments=[Tokens(ids), last], **options)
        for i, ids in enumerate(prompts)
    ]


def distinct(prompts: list[list[int]]) -> int:
    """Rows that prompts need, but for those that end where another goes on: their last token is computed
    for its logits."""
    return len({tuple(ids[:end]) for ids in prompts for end in range(1, len(ids) + 1)})


@pytest.fixture
def runner() -> HashRunner:
    return HashRunner(num_slots=1024, context=256)


@pytest.fixture
def engine(runner: HashRunner) -> Iterator[Engine]:
    with hash_engine(runner=runner) as engine:
        yield engine


def together(engine: Engine, runner: HashRunner, wanted: list[Request]) -> list[Answers]:
    """Submit requests that all wait when the next step is planned; their answers, by request."""
    begun, go = threading.Event(), threading.Event()

    def hold(batch: RaggedBatch) -> None:
        begun.set()
        assert go.wait(10)

    answers: dict[str, Answers] = {request.rid: [] for request in wanted}
    missing = sum(request.n for request in wanted)
    done = threading.Event()

    def on_event(event: Event) -> None:
        nonlocal missing
        assert not isinstance(event, Failed), event
        if isinstance(event, SegmentDone):
            answers[event.rid].append(event.result)
        elif isinstance(event, SampleDone):
            missing -= 1
            if not missing:
                done.set()

    runner.before_forward = hold
    engine.submit(Request(rid="first", segments=[Tokens([9]), gen()]), lambda event: None)
    assert begun.wait(10)
    for request in wanted:
        engine.submit(request, on_event)
    while engine._intake._pending:  # what is not quick is prepared in another thread
        time.sleep(0.001)
    runner.before_forward = lambda batch: None
    del runner.steps[:]
    go.set()
    assert done.wait(10)
    engine.check_integrity()
    assert runner.steps[0] == 1  # the one that held them up
    del runner.steps[0]
    return list(answers.values())


def alone(request: Request) -> Answers:
    with hash_engine() as engine:
        events = collect(engine, request)
        return [event.result for event in events if isinstance(event, SegmentDone)]


def said(answers: Answers) -> list[tuple[object, ...]]:
    """What was answered, without where its tokens came from."""
    return sorted(
        (a.token_ids, a.logprobs if isinstance(a, GenResult) else a.scores) for a in answers
    )


def test_a_step_computes_what_its_prompts_share_once(engine: Engine, runner: HashRunner) -> None:
    wanted = requests(PROMPTS, gen())
    answers = together(engine, runner, wanted)
    rows = distinct(PROMPTS) + 1
    assert runner.steps == [rows]
    assert [said(one) for one in answers] == [said(alone(request)) for request in wanted]
    usages = [one.usage for (one,) in answers]
    assert [u.cached_tokens + u.computed_tokens for u in usages] == [len(ids) for ids in PROMPTS]
    assert sum(u.computed_tokens for u in usages) == rows
    stats = engine.stats()
    assert stats.computed_tokens == rows + 1
    assert stats.cached_tokens == sum(map(len, PROMPTS)) - rows


@pytest.mark.parametrize("step_tokens", [1, 7, 16])
def test_so_do_several_steps(step_tokens: int, runner: HashRunner) -> None:
    with hash_engine(runner=runner, step_tokens=step_tokens) as engine:
        wanted = requests(PROMPTS, gen())
        answers = together(engine, runner, wanted)
        # An end that several have may be reached in several steps.
        assert distinct(PROMPTS) < sum(runner.steps) <= distinct(PROMPTS) + 2
    assert [said(one) for one in answers] == [said(alone(request)) for request in wanted]


def test_samples_begin_with_the_same_row(engine: Engine, runner: HashRunner) -> None:
    (wanted,) = requests([LONG], gen(max_tokens=4), n=5)
    (answers,) = together(engine, runner, [wanted])
    assert runner.steps == [len(LONG), 5, 5, 5]
    assert said(answers) == said(alone(wanted))
    assert len({tuple(a.token_ids) for a in answers}) > 1


def test_samples_of_a_cached_prompt_compute_its_last_token_once(
    engine: Engine, runner: HashRunner
) -> None:
    (wanted,) = requests([LONG], gen(), n=5)
    collect(engine, Request(rid="before", segments=[Tokens(LONG), gen()]))
    (answers,) = together(engine, runner, [wanted])
    assert runner.steps == [1]
    assert said(answers) == said(alone(wanted))


def test_selections_after_the_same_text_share_it(engine: Engine, runner: HashRunner) -> None:
    choices = Select(choices=["yes", "yellow", "no"], heal=False)
    wanted = requests([LONG] * 3, choices)
    answers = together(engine, runner, wanted)
    # Rows of the choices: y, e, l, l, o and n; what ends a choice needs none.
    assert runner.steps == [len(LONG) + 3 * 6]
    assert [said(one) for one in answers] == [said(alone(request)) for request in wanted]


def test_a_prompt_whose_log_probs_are_wanted_joins_nothing(
    engine: Engine, runner: HashRunner
) -> None:
    scored = Request(
        rid="scored",
        segments=[Tokens(LONG), gen()],
        prompt_logprobs=PromptLogprobs(start=0),
    )
    answers = together(engine, runner, [*requests([LONG], gen()), scored])
    assert runner.steps == [2 * len(LONG)]
    assert said(answers[0]) == said(answers[1]) == said(alone(scored))


def test_what_no_longer_fits_waits(runner: HashRunner) -> None:
    """A small pool: prompts that join others are still retracted and resumed exactly."""
    small = HashRunner(num_slots=120, context=100)
    wanted = requests([[*START, i] for i in range(12)], gen(max_tokens=40))
    with hash_engine(runner=small) as engine:
        answers = together(engine, small, wanted)
        assert engine.stats().retractions > 0
    assert [said(one) for one in answers] == [said(alone(request)) for request in wanted]
