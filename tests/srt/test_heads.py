"""The output head is computed as far as a grammar leaves a choice, and nobody can tell from the output."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.engines import collect, hash_engine
from support.hash_model import HashRunner
from support.op_cases import ISAS
from support.quantised_models import quantised_model

from stolon.kernels import RaggedBatch, native_ops
from stolon.srt.engine import Engine
from stolon.srt.heads import FEW_ROWS, SHORT_LIST
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
    Text,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a person", "a place", "nothing"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["kind", "age"],
    "additionalProperties": False,
}


def grammar(kind: str, text: Any) -> GrammarSpec:
    return GrammarSpec(kind=kind, text=text if isinstance(text, str) else json.dumps(text))  # type: ignore[arg-type]


def one_of(count: int) -> GrammarSpec:
    """A choice between texts that begin with `count` different tokens."""
    return grammar("choice", [chr(i) + "!" for i in range(min(count, 128))] + ["é"] * (count > 128))


DIGITS = grammar("regex", "([0-9]{3}-){4}")
GRAMMARS = [grammar("json_schema", SCHEMA), DIGITS, grammar("regex", "(ja|nein|ja wohl)( .{3}x)+")]
LISTS = [one_of(n) for n in (1, 2, 63, 64, 65, 127, 128, 129)]
FILTERED: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.9,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.2,
    "logit_bias": {ord("3"): 2.5, ord("z"): 9.0},
}


def mixture() -> list[Request]:
    """Constrained and free generations in each other's company."""
    gens = [Gen(grammar=spec, sampling=Sampling(jump_forward="off", seed=4)) for spec in LISTS]
    for number, spec in enumerate([*GRAMMARS, None]):
        for mode in ("inject", "verify", "off"):
            for options in ({"temperature": 0.0}, {"temperature": 1.0}, FILTERED):
                sampling = Sampling(
                    max_tokens=24 if number == 3 else 50,
                    seed=number,
                    jump_forward=mode,  # type: ignore[arg-type]
                    stop=("7-",) if number == 1 else (),
                    stop_token_ids=(ord("5"),) if mode == "verify" else (),
                    min_tokens=6 if mode == "off" else 0,
                    **options,
                )
                gens.append(Gen(grammar=spec, sampling=sampling))
    for mode in ("raw", "tempered", "processed"):
        for top in (0, 3):
            logprobs = LogprobSpec(mode=mode, top=top)  # type: ignore[arg-type]
            sampling = Sampling(max_tokens=40, temperature=0.7, seed=2, top_k=5)
            gens.append(Gen(grammar=DIGITS, sampling=sampling, logprobs=logprobs))
            sampling = Sampling(max_tokens=40, seed=2, jump_forward="off", top_p=0.8)
            gens.append(Gen(grammar=GRAMMARS[0], sampling=sampling, logprobs=logprobs))
    return [
        Request(rid=str(i), segments=[Text(f"{i % 5} prompt: "), gen], n=1 + i % 3)
        for i, gen in enumerate(gens)
    ]


def outcomes(engine: Engine, *, short_list: int = SHORT_LIST) -> list[Any]:
    """What becomes of the mixture, log-probs to the last bit."""
    engine._loop._batcher._heads.short_list = short_list
    with ThreadPoolExecutor(len(mixture())) as pool:
        asked = pool.map(lambda request: collect(engine, request), mixture())
        events = [event for each in asked for event in each]
    engine.check_integrity()
    assert not [event for event in events if isinstance(event, Failed)]
    results = [event for event in events if isinstance(event, SegmentDone)]
    found = {}
    for event in results:
        result = event.result
        assert isinstance(result, GenResult)
        found[event.rid, event.sample] = (
            result.text,
            result.token_ids,
            result.finish,
            result.logprobs,
        )
    return sorted(found.items())


def test_nobody_looks_at_what_is_not_computed() -> None:
    """The model of this engine gives NaN where a logit was not asked for."""
    room: dict[str, Any] = {"num_slots": 8192, "max_running": 24}
    with hash_engine(**room) as engine, hash_engine(**room) as whole:
        cut = outcomes(engine)
        assert engine.stats().short_heads > 200
        assert engine.stats().skipped_heads > 20
        assert cut == outcomes(whole, short_list=0)
        assert whole.stats().short_heads == whole.stats().skipped_heads == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_short_head_gives_the_same_bits(architecture: str, isa: str) -> None:
    with Engine.from_parts(
        quantised_model(architecture),  # type: ignore[arg-type]
        ByteTokenizer(),
        ops=native_ops(2, isa),
        kv_tokens=8192,
        context_length=512,
        max_running=24,
    ) as engine:
        cut = outcomes(engine)
        assert engine.stats().short_heads > 200
        assert engine.stats().skipped_heads > 20
        engine.flush_cache()
        assert cut == outcomes(engine, short_list=0)


class Log:
    """Per step of an engine: its rows, the rows with logits, and the sizes of the short lists."""

    def __init__(self) -> None:
        self.runner = HashRunner(num_slots=2048, context=256, max_running=16)
        self.runner.before_forward = self.look
        self.steps: list[tuple[int, int, list[int]]] = []

    def look(self, batch: RaggedBatch) -> None:
        lists = [len(ids) for ids in batch.short_lists]
        self.steps.append((len(batch.input_ids), len(batch.output_rows), lists))


def test_where_one_token_is_left_nothing_is_computed_to_find_it() -> None:
    log = Log()
    with hash_engine(runner=log.runner) as engine:
        out = engine.generate("x", choices=["just so it is"], jump_forward="off", temperature=1.0)
        assert out.text == "just so it is"
        assert (engine.stats().skipped_heads, engine.stats().short_heads) == (13, 0)
    assert log.steps == [(len(ByteTokenizer().encode("x")), 0, [])] + [(1, 0, [])] * 12


@pytest.mark.parametrize("count", [1, 2, SHORT_LIST - 1, SHORT_LIST, SHORT_LIST + 1])
def test_how_long_a_list_may_be(count: int) -> None:
    log = Log()
    with hash_engine(runner=log.runner) as engine:
        gen = Gen(grammar=one_of(count), sampling=Sampling(jump_forward="off", seed=1))
        collect(engine, Request(rid="a", segments=[Text("x"), gen]))
    expected = {1: (0, [])}.get(count, (1, [count] if count <= SHORT_LIST else []))
    assert log.steps[0][1:] == expected


@pytest.mark.parametrize("free", [0, FEW_ROWS - 1, FEW_ROWS])
def test_few_rows_beside_a_free_one_are_computed_in_full(free: int) -> None:
    log, all_there, done = Log(), threading.Event(), threading.Semaphore(0)

    def on_event(event: Event) -> None:
        if isinstance(event, SampleDone | Failed):
            done.release()

    with hash_engine(runner=log.runner) as engine:
        gens = [Gen(sampling=Sampling(max_tokens=200, ignore_eos=True, speculation="off"))] * free
        gens.append(Gen(grammar=DIGITS, sampling=Sampling(jump_forward="off", speculation="off")))
        collect(engine, Request(rid="compiled", segments=[Text("y"), gens[-1]]))
        log.steps.clear()

        def look_when_all_are_there(batch: RaggedBatch) -> None:
            assert all_there.wait(30)
            log.look(batch)

        log.runner.before_forward = look_when_all_are_there
        for i, gen in enumerate(gens):
            engine.submit(Request(rid=str(i), segments=[Text("x"), gen]), on_event)
        all_there.set()
        assert all(done.acquire(timeout=30) for _ in gens)
    together = [lists for rows, outputs, lists in log.steps if rows == outputs == free + 1]
    assert together
    assert all(lists == ([] if 0 < free < FEW_ROWS else [10]) for lists in together)


@pytest.mark.parametrize(("mode", "cut"), [("raw", 0), ("tempered", 0), ("processed", 16)])
def test_log_probs_of_the_models_own_logits_need_all_of_them(mode: Any, cut: int) -> None:
    with hash_engine() as engine:
        gen = Gen(
            grammar=DIGITS,
            sampling=Sampling(jump_forward="off", speculation="off"),
            logprobs=LogprobSpec(mode=mode),
        )
        collect(engine, Request(rid="a", segments=[Text("x"), gen]))
        stats = engine.stats()
        assert stats.short_heads + stats.skipped_heads == cut


def test_the_prompts_log_probs_come_with_a_constrained_text() -> None:
    with hash_engine() as engine:
        for text, spec in (("x", one_of(1)), ("xyz", DIGITS), ("xyz", one_of(1))):
            gen = Gen(grammar=spec, sampling=Sampling(jump_forward="off"))
            asked = PromptLogprobs(start=0)
            request = Request(rid="a", segments=[Text(text), gen], prompt_logprobs=asked, n=2)
            events = collect(engine, request)
            [scores] = [event.logprobs for event in events if isinstance(event, PromptDone)]
            assert [entry.logprob is None for entry in scores] == [True, *[False] * len(text[1:])]
