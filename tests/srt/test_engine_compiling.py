"""Grammars compile while the prompt is computed: nothing waits that need not, and nothing changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.engines import hash_engine

from stolon.constrained import compilation
from stolon.constrained.fsm import grammar as fsm_grammar
from stolon.errors import GrammarError
from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Event,
    Failed,
    Gen,
    GenResult,
    GrammarSpec,
    LogprobSpec,
    PromptDone,
    PromptLogprobs,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    Text,
)

PROMPT = "A prompt that is long enough to be computed in several steps: " * 3
DIGITS = GrammarSpec(kind="regex", text="[0-9]{4,9}x")
FORCED = GrammarSpec(kind="regex", text="value=[ab]{3};")


class Slow:
    """An engine whose compiler waits for `go` before it compiles anything."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.go = threading.Event()
        self.compiling = threading.Event()
        own: Any = engine._intake._admission._compiler
        compile = own.compile

        def slow(spec: GrammarSpec, *, prefix: bytes = b"") -> Any:
            self.compiling.set()
            assert self.go.wait(20)
            return compile(spec, prefix=prefix)

        own.compile = slow

    def submit(self, request: Request) -> Answer:
        answer = Answer(request)
        self.engine.submit(request, answer)
        return answer

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.001)


class Answer:
    """Events of a request."""

    def __init__(self, request: Request) -> None:
        self.events: list[Event] = []
        self.done = threading.Event()
        self._open = request.n

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._open -= isinstance(event, SampleDone)
        if not self._open or isinstance(event, Failed):
            self.done.set()

    def wait(self) -> list[Event]:
        assert self.done.wait(20), self.events
        return self.events

    @property
    def results(self) -> list[Any]:
        return [event.result for event in self.wait() if isinstance(event, SegmentDone)]


@pytest.fixture
def slow() -> Iterator[Slow]:
    with hash_engine(num_slots=1024, context=512, step_tokens=32) as engine:
        slow = Slow(engine)
        yield slow
        slow.go.set()
        engine.check_integrity()
        assert engine.generate("still here", max_tokens=2, ignore_eos=True).token_ids


def request(rid: str, *segments: Any, **options: Any) -> Request:
    return Request(rid=rid, segments=list(segments), **options)


def gen(grammar: GrammarSpec | None = DIGITS, **options: Any) -> Gen:
    sampling = {"max_tokens": 12, "temperature": 1.0, "seed": 5} | options.pop("sampling", {})
    return Gen(grammar=grammar, sampling=Sampling(**sampling), **options)


def test_the_prompt_is_computed_while_the_grammar_compiles(slow: Slow) -> None:
    answer = slow.submit(request("a", Text(PROMPT), gen()))
    assert slow.compiling.wait(10)
    tokens = len(slow.engine.tokenizer.encode(PROMPT))
    # All but the last token, which is computed together with what the grammar forces.
    slow.until(lambda: slow.engine.stats().computed_tokens == tokens - 1)
    steps = slow.engine.stats().steps
    others = slow.engine.generate("another request", max_tokens=3, ignore_eos=True)
    assert len(others.token_ids) == 3
    time.sleep(0.05)
    assert slow.engine.stats().steps <= steps + 5  # it sleeps instead of stepping in vain
    assert answer.events == []
    slow.engine.check_integrity()
    slow.go.set()
    (result,) = answer.results
    assert result.text[:4].isdigit()
    assert slow.engine.stats().computed_tokens >= tokens


BLOCKS: dict[str, list[Any]] = {
    "forced": [Text(PROMPT), gen(FORCED)],
    "healed": [Text(PROMPT + "\n\n"), gen(FORCED, heal=True)],
    "verified": [Text("x"), gen(FORCED, sampling={"jump_forward": "verify"})],
    "logprobs": [Text(PROMPT), gen(FORCED, logprobs=LogprobSpec(top=2))],
    "no tokens": [
        Text(PROMPT),
        gen(DIGITS, sampling={"max_tokens": 0}),
        Text(" and "),
        gen(FORCED),
    ],
    "later": [Text("a"), gen(None), Text(" then "), gen(DIGITS), gen(FORCED), Text(" end")],
    "select": [Text("a"), Select(choices=("b", "c")), gen(DIGITS), Text("!"), gen(FORCED)],
}


def plain(events: list[Event]) -> Any:
    """Everything of the answer but its costs."""
    results = [
        (
            e.sample,
            e.segment,
            e.result.text,
            e.result.token_ids,
            getattr(e.result, "logprobs", None),
        )
        for e in events
        if isinstance(e, SegmentDone)
    ]
    prompts = [(e.token_ids, e.logprobs) for e in events if isinstance(e, PromptDone)]
    done = [(e.sample, e.token_ids, e.prompt_tokens) for e in events if isinstance(e, SampleDone)]
    return sorted(results, key=lambda r: r[:2]), prompts, sorted(done)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("options", [{}, {"n": 3, "prompt_logprobs": PromptLogprobs(top=1)}])
def test_the_answer_is_the_same(slow: Slow, name: str, options: dict[str, Any]) -> None:
    late = slow.submit(request("late", *BLOCKS[name], **options))
    assert slow.compiling.wait(10)
    time.sleep(0.02)
    slow.go.set()
    events = late.wait()
    slow.engine.flush_cache()
    cached = slow.submit(request("cached", *BLOCKS[name], **options)).wait()
    assert plain(events) == plain(cached)
    assert not any(isinstance(event, Failed) for event in events)


def test_a_cached_grammar_needs_no_extra_step(slow: Slow) -> None:
    slow.go.set()
    slow.submit(request("a", Text("x"), gen(FORCED))).wait()
    slow.compiling.clear()
    before = slow.engine.stats().steps
    (result,) = slow.submit(request("b", Text("x"), gen(FORCED))).results
    assert not slow.compiling.is_set()
    assert result.usage.forced_tokens >= len("value=")
    assert slow.engine.stats().steps - before <= result.usage.sampled_tokens + 1


def test_a_refusal_ends_the_request_and_nothing_else(slow: Slow) -> None:
    bad = GrammarSpec(kind="regex", text="(")
    answer = slow.submit(request("bad", Text(PROMPT), gen(None), Text("."), gen(bad), n=2))
    good = slow.submit(request("good", Text(PROMPT), gen(None)))
    assert slow.compiling.wait(10)
    slow.until(lambda: slow.engine.stats().running == 2 or bool(answer.events))
    slow.go.set()
    failed = answer.wait()[-1]
    assert isinstance(failed, Failed)
    assert failed.segment == 3
    assert isinstance(failed.error(), GrammarError)
    assert isinstance(good.results[0], GenResult)
    slow.until(lambda: slow.engine.stats().running == 0)
    # A refusal that is known already is raised at once.
    again = slow.submit(request("again", Text(PROMPT), gen(bad))).wait()
    assert isinstance(again[-1], Failed)
    assert len(again) == 1


def test_an_abort_while_it_compiles_ends_every_sample(slow: Slow) -> None:
    answer = slow.submit(request("a", Text(PROMPT), gen(), n=2))
    slow.until(lambda: slow.engine.stats().running == 2)
    slow.engine.abort("a")
    events = answer.wait()
    results = answer.results
    assert [result.finish.kind for result in results] == ["abort", "abort"]
    slow.until(lambda: slow.engine.stats().running == 0)
    slow.engine.check_integrity()
    slow.go.set()
    slow.engine.generate("y", regex="[0-9]{2}", max_tokens=4)  # by now the late grammar has come
    assert len(events) == len(answer.events)


def test_a_refusal_after_an_abort_is_not_reported(slow: Slow) -> None:
    bad = GrammarSpec(kind="regex", text="(")
    answer = slow.submit(request("a", Text(PROMPT), gen(bad)))
    slow.until(lambda: slow.engine.stats().running == 1)
    slow.engine.abort("a")
    answer.wait()
    slow.go.set()
    slow.engine.generate("y", regex="[0-9]{2}", max_tokens=4)
    assert not any(isinstance(event, Failed) for event in answer.events)


def test_a_sequence_that_waits_gives_way_when_slots_run_out() -> None:
    with hash_engine(num_slots=260, context=250, step_tokens=64) as engine:
        slow = Slow(engine)
        held = slow.submit(request("held", Text(PROMPT[:150]), gen(FORCED)))
        slow.until(lambda: engine.stats().computed_tokens >= 100)
        busy = engine.generate("go " * 10, max_tokens=150, ignore_eos=True, temperature=0.0)
        assert len(busy.token_ids) == 150
        slow.go.set()
        assert engine.stats().retractions == 1
        assert held.results[0].text.startswith("value=")
        engine.check_integrity()


def test_close_ends_what_still_compiles() -> None:
    engine = hash_engine()
    slow = Slow(engine)
    answer = slow.submit(request("a", Text("x"), gen()))
    assert slow.compiling.wait(10)
    closing = threading.Thread(target=engine.close)
    closing.start()
    slow.go.set()
    closing.join(20)
    assert answer.done.wait(5)


WIDE = GrammarSpec(kind="regex", text="x[ab]*a[ab]{20}(?:c|dd)")
OUTGROWN: dict[str, dict[str, Any]] = {
    "drawn": {},
    "verified": {"sampling": {"jump_forward": "verify"}},
    "logprobs": {"logprobs": LogprobSpec(top=2)},
    "closed": {"sampling": {"close_at_budget": True}},
}


@pytest.mark.parametrize("name", OUTGROWN)
def test_an_automaton_is_outgrown_off_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its grammar is compiled anew in a thread, meanwhile others go on, and no token is another one."""
    threads: set[str] = set()
    go = threading.Event()
    in_llguidance = compilation._in_llguidance

    def slow(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        assert go.wait(20)
        return in_llguidance(*args)

    options = OUTGROWN[name] | {"sampling": {"max_tokens": 60} | OUTGROWN[name].get("sampling", {})}
    wide = request("wide", Text("x"), gen(WIDE, **options), n=2)
    with hash_engine() as engine:
        expected = Slow(engine)
        expected.go.set()
        whole = expected.submit(wide).wait()
    monkeypatch.setattr(fsm_grammar, "MAX_SET", 8)
    monkeypatch.setattr(compilation, "_in_llguidance", slow)
    with hash_engine() as engine:
        held = Answer(wide)
        engine.submit(wide, held)
        deadline = time.monotonic() + 10
        while not threads and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(engine.generate("y", max_tokens=5, ignore_eos=True).token_ids) == 5
        time.sleep(0.02)
        steps = engine.stats().steps
        time.sleep(0.05)
        assert engine.stats().steps == steps
        engine.check_integrity()
        assert not held.done.is_set()
        go.set()
        events = held.wait()
        engine.check_integrity()
    assert threads == {"stolon-fallback"}
    if name != "closed":
        assert plain(events) == plain(whole)
    for result in held.results:
        assert result.finish.kind == "stop" or name != "closed"


def test_a_refusal_of_what_an_outgrown_automaton_needs_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise GrammarError("no")

    monkeypatch.setattr(fsm_grammar, "MAX_SET", 8)
    monkeypatch.setattr(compilation, "_in_llguidance", refuse)
    with hash_engine() as engine:
        for rid, place in (("a", 1), ("b", 3)):
            before = [Text("x")] if rid == "a" else [Text("x"), gen(None), Text("y")]
            asked = request(rid, *before, gen(WIDE, sampling={"max_tokens": 60}))
            answer = Answer(asked)
            engine.submit(asked, answer)
            failed = answer.wait()[-1]
            assert isinstance(failed, Failed)
            assert failed.segment == place
            assert isinstance(failed.error(), GrammarError)
        engine.check_integrity()
