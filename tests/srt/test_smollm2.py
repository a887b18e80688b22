"""The default model, for real.

The recorded greedy tokens come from transformers 5.24 (`from_pretrained(folder, gguf_file=…)`, float32,
`generate(do_sample=False)`), which reads and dequantises the same GGUF file with code of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.default_model import default_model_path
from support.engines import collect

from stolon.srt.engine import Engine
from stolon.srt.protocol import (
    Gen,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    Text,
    Tokens,
)

GREEDY = {
    prompt: [int(token) for token in tokens.split()]
    for prompt, tokens in {
        "The capital of France is": (
            "7042 30 198 198 504 2988 314 42 216 34 32 33 40 29 32 33 29 34 34 216 33 34 42 33 "
            "34 42 37 35 30 2"
        ),
        "def fibonacci(n):\n": (
            "198 1604 3987 46477 24 94 727 472 585 304 10204 216 33 42 448 1003 304 472 1745 42 "
            "448 1003 3987 46477 24 94 731 216 33 25 1232 3987"
        ),
        "Once upon a time, in a small village by the sea,": (
            "665 436 253 9357 1573 267 19341 3365 17644 793 30 909 4161 281 253 11637 10000 411 "
            "253 3953 4480 4412 351 511 11695 282 9077 6734 30 198 198 1082"
        ),
        "List three fruits:\n1.": (
            "12619 3231 198 34 30 10910 198 35 30 4924 432 25403 198 198 504 2988 314 42 216 35 "
            "30 198 198 788 451 1183 28 260 4354 314 253 4354"
        ),
    }.items()
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
NOTE = "Extract the person as JSON. Maria Lopez, 34, is a nurse in Lisbon.\n"


@pytest.fixture(scope="module")
def exact() -> Iterator[Engine]:
    with Engine(default_model_path(), dtype="float32", kv_tokens=4096) as engine:
        yield engine


@pytest.fixture(scope="module")
def fast() -> Iterator[Engine]:
    with Engine(default_model_path(), kv_tokens=4096) as engine:
        yield engine
        engine.check_integrity()


def test_greedy_text_is_the_reference_s(exact: Engine) -> None:
    outputs = exact.generate(list(GREEDY), max_tokens=32, temperature=0.0, ignore_eos=True)
    for output, expected in zip(outputs, GREEDY.values(), strict=True):
        assert output.token_ids[: len(expected)] == expected


def test_warm_chunked_and_forked_equal_cold(exact: Engine) -> None:
    prompt = "Once upon a time, in a small village by the sea,"
    warm = exact.generate(prompt, max_tokens=32, temperature=0.0)
    assert warm.usage.computed_tokens == 1
    assert warm.token_ids == GREEDY[prompt]
    samples = exact.generate(prompt, n=4, seed=3, max_tokens=12)
    exact.flush_cache()
    again = exact.generate(prompt, n=2, seed=3, max_tokens=12)
    assert [o.token_ids for o in again] == [o.token_ids for o in samples[:2]]
    exact.check_integrity()


def test_the_fast_path_begins_alike(fast: Engine) -> None:
    """The exact token is its first choice, or nearly as likely: two of the prompts begin with close calls."""
    for prompt, expected in GREEDY.items():
        ids = fast.tokenizer.encode(prompt)
        for i, token in enumerate(expected[:4]):
            output = fast.generate(
                input_ids=ids + expected[:i],
                max_tokens=1,
                temperature=0.0,
                return_logprob=True,
                top_logprobs_num=3,
            )
            top = dict(output.logprobs[0].top)
            assert top[token] > max(top.values()) - 0.15


def test_log_probs_of_the_fast_path_are_close(exact: Engine, fast: Engine) -> None:
    ids = exact.tokenizer.encode(
        "Lisbon is the capital of Portugal, and Madrid is the capital of Spain."
    )
    one, other = (
        engine.generate(input_ids=ids, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        for engine in (exact, fast)
    )
    pairs = list(zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True))
    assert all(a.token == b.token for a, b in pairs)
    # 8-bit activations: the mean divergence over long texts is 0.003 nats.
    differences = [abs(a.logprob - b.logprob) for a, b in pairs]
    assert sum(differences) / len(differences) < 0.15
    assert max(differences) < 0.8


def test_a_schema_is_kept_and_forces_tokens(fast: Engine) -> None:
    output = fast.generate(NOTE, json_schema=PERSON, max_tokens=60, temperature=0.0)
    value = json.loads(output.text)
    assert set(value) == {"name", "age"}
    assert isinstance(value["age"], int)
    assert output.finish.kind == "stop"
    assert output.usage.forced_tokens > 4
    # The same with log-probs, where every forced token is a step of its own.
    scored = fast.generate(
        NOTE, json_schema=PERSON, max_tokens=60, temperature=0.0, return_logprob=True
    )
    assert scored.token_ids == output.token_ids
    assert all(entry.logprob <= 0 for entry in scored.logprobs)


def test_forced_tokens_are_canonical(fast: Engine) -> None:
    output = fast.generate(NOTE, json_schema=PERSON, max_tokens=60, temperature=0.0)
    assert fast.tokenizer.encode(output.text) == output.token_ids


def test_healing_a_trailing_blank(exact: Engine) -> None:
    """ "The capital of France is " continues like the text without the blank, minus the blank."""
    gen = Gen(sampling=Sampling(max_tokens=4, temperature=0.0), heal=True)
    events = collect(exact, Request(rid="h", segments=[Text("The capital of France is "), gen]))
    text = next(e.result.text for e in events if isinstance(e, SegmentDone))
    assert text.startswith("Paris")
    done = next(e for e in events if isinstance(e, SampleDone))
    plain = exact.tokenizer.encode("The capital of France is")
    assert done.token_ids[: len(plain) + 1] == [*plain, 7042]


def test_select_prefers_the_truth(exact: Engine) -> None:
    select = Select(choices=("Paris", "London", "Berlin"), heal=True)
    events = collect(exact, Request(rid="s", segments=[Text("The capital of France is "), select]))
    result = next(e.result for e in events if isinstance(e, SegmentDone))
    assert result.text == "Paris"


def test_a_block_is_walked_in_one_request(fast: Engine) -> None:
    gen = Gen(sampling=Sampling(max_tokens=6, temperature=0.0, stop=("\n",)))
    segments = [Text("Q: 2+2?\nA:"), gen, Text("\nQ: capital of Italy?\nA:"), gen, Tokens([198])]
    events = collect(fast, Request(rid="b", segments=segments))
    done = events[-1]
    assert isinstance(done, SampleDone)
    assert sum(isinstance(event, SegmentDone) for event in events) == 2
    text = fast.tokenizer.decode(done.token_ids)
    assert text.startswith("Q: 2+2?\nA:")
    assert "\nQ: capital of Italy?\nA:" in text
