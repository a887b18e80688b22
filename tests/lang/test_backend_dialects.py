"""The table of dialects: what is sent to each server, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.dialect_table import table
from support.wire_server import WireServer

from stolon.errors import BackendUnavailable, InvalidRequest, StolonError
from stolon.lang.backends.dialect import Endpoint
from stolon.lang.backends.dialects import DIALECTS, dialect
from stolon.lang.backends.dialects_body import generation_fields
from stolon.lang.backends.dialects_detect import Address, Detected, detect, known_host
from stolon.lang.backends.http import HTTPOptions
from stolon.lang.runtime_loop import runtime_loop
from stolon.srt.protocol import Gen, GrammarSpec, LogprobSpec, Sampling

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SPECS = {
    "choice": GrammarSpec(kind="choice", text='["yes", "no (really)"]'),
    "regex": GrammarSpec(kind="regex", text="[0-9]+"),
    "ebnf": GrammarSpec(kind="ebnf", text='root ::= "a" | "b"'),
    "lark": GrammarSpec(kind="lark", text='start: "a"'),
    "json_schema": GrammarSpec(kind="json_schema", text=json.dumps(SCHEMA)),
    "json_object": GrammarSpec(kind="json_object"),
}
STRICT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
}
GBNF_CHOICES = "root ::= [y] [e] [s] | [n] [o] [\\x20] [\\x28] [r] [e] [a] [l] [l] [y] [\\x29]\n"


def fields(name: str, gen: Gen, endpoint: Endpoint = "chat", sample: int = 0) -> dict[str, Any]:
    return generation_fields(gen, dialect(name), endpoint, sample=sample)


def asked(name: str, kind: str, endpoint: Endpoint = "chat") -> dict[str, Any]:
    """What a constraint adds to the body."""
    plain = fields(name, Gen(sampling=Sampling(max_tokens=8)), endpoint)
    with_it = fields(name, Gen(sampling=Sampling(max_tokens=8), grammar=SPECS[kind]), endpoint)
    return {key: value for key, value in with_it.items() if plain.get(key) != value}


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("openai", "json_schema", {"response_format": STRICT}),
        ("openai", "json_object", {"response_format": {"type": "json_object"}}),
        ("vllm", "choice", {"structured_outputs": {"choice": ["yes", "no (really)"]}}),
        ("vllm", "regex", {"structured_outputs": {"regex": "[0-9]+"}}),
        ("vllm", "ebnf", {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}}),
        ("vllm", "json_schema", {"structured_outputs": {"json": SCHEMA}}),
        ("vllm", "json_object", {"structured_outputs": {"json_object": True}}),
        ("sglang", "choice", {"regex": r"(yes|no \(really\))"}),
        ("sglang", "regex", {"regex": "[0-9]+"}),
        ("sglang", "ebnf", {"ebnf": 'root ::= "a" | "b"'}),
        ("sglang", "json_schema", {"response_format": STRICT}),
        ("llama-server", "regex", {"grammar": "root ::= [0-9]+\n"}),
        ("llama-server", "choice", {"grammar": GBNF_CHOICES}),
        ("llama-server", "ebnf", {"grammar": 'root ::= "a" | "b"'}),
        ("llama-server", "json_schema", {"json_schema": SCHEMA}),
        (
            "llama-cpp-python",
            "json_schema",
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
        ),
        ("ollama", "json_schema", {"format": SCHEMA}),
        ("ollama", "json_object", {"format": {"type": "object"}}),
        ("lmstudio", "json_schema", {"response_format": STRICT}),
        ("nim", "regex", {"nvext": {"guided_regex": "[0-9]+"}}),
        ("nim", "choice", {"nvext": {"guided_choice": ["yes", "no (really)"]}}),
        ("nim", "json_schema", {"nvext": {"guided_json": SCHEMA}}),
        ("tensorrt-llm", "regex", {"response_format": {"type": "regex", "regex": "[0-9]+"}}),
        ("tensorrt-llm", "json_schema", {"response_format": {"type": "json", "schema": SCHEMA}}),
        (
            "lmdeploy",
            "regex",
            {"response_format": {"type": "regex_schema", "regex_schema": "[0-9]+"}},
        ),
        (
            "anthropic",
            "json_schema",
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
    ],
)
def test_a_constraint_is_said_in_the_servers_words(
    name: str, kind: str, wanted: dict[str, Any]
) -> None:
    assert asked(name, kind) == wanted


def test_text_without_messages_has_constraints_of_its_own() -> None:
    schema_text = {"json_schema": json.dumps(SCHEMA)}
    assert asked("sglang", "json_schema", "completions") == schema_text
    closed = GrammarSpec(kind="json_schema", text='{"enum": [1, 2]}')
    gen = Gen(sampling=Sampling(max_tokens=8), grammar=closed)
    assert fields("llama-cpp-python", gen, "completions")["grammar"] == "root ::= [1] | [2]\n"
    with pytest.raises(InvalidRequest, match=r"OpenAI can't honour .* without messages"):
        asked("openai", "json_schema", "completions")


@pytest.mark.parametrize("name", DIALECTS)
def test_every_constraint_is_either_sent_or_refused(name: str) -> None:
    row = dialect(name)
    for endpoint in row.endpoints:
        for kind in SPECS:
            if kind in row.constraints_of(endpoint):
                if kind == "json_schema" and row.constraints_of(endpoint)[kind].form == "gbnf":
                    continue  # depends on the schema
                assert asked(name, kind, endpoint)
                continue
            with pytest.raises(InvalidRequest) as refused:
                asked(name, kind, endpoint)
            assert row.title in str(refused.value)
            assert refused.value.param == kind


CHANGED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {5: 1.0},
    "stop": ("x",),
    "stop_token_ids": (5,),
    "stop_regex": ("x+",),
    "ignore_eos": True,
    "include_stop": True,
    "min_tokens": 2,
    "skip_special_tokens": False,
    "close_at_budget": True,
}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("field", CHANGED)
def test_no_sampling_field_is_dropped(name: str, field: str) -> None:
    row = dialect(name)
    gen = Gen(sampling=Sampling(max_tokens=8, **{field: CHANGED[field]}))
    for endpoint in row.endpoints:
        if field not in row.sampling:
            with pytest.raises(InvalidRequest) as refused:
                fields(name, gen, endpoint)
            assert refused.value.param == field
            assert row.title in refused.value.message
            continue
        value = CHANGED[field]
        value = {"5": 1.0} if field == "logit_bias" else value
        assert fields(name, gen, endpoint)[row.sampling[field]] == value


def test_fields_that_the_table_knows_are_fields_of_sampling() -> None:
    for row in DIALECTS.values():
        assert set(row.sampling) <= set(Sampling.__struct_fields__)
        assert set(row.always) <= set(row.sampling)


def test_what_a_servers_defaults_would_change_is_sent() -> None:
    plain = Gen(sampling=Sampling(max_tokens=8))
    assert fields("llama-server", plain) == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "repeat_last_n": -1,
        "cache_prompt": True,
        "max_tokens": 8,
    }
    assert fields("sglang", plain)["top_k"] == -1
    assert fields("compatible", plain) == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8}
    assert fields("openai", plain) == {"max_completion_tokens": 8}
    assert fields("openai", plain, "completions") == {"max_tokens": 8}


def test_samples_have_seeds_of_their_own_in_the_servers_range() -> None:
    gen = Gen(sampling=Sampling(max_tokens=8, seed=2**63 - 1))
    seeds = [fields("llama-server", gen, sample=sample)["seed"] for sample in range(3)]
    assert seeds == [2**31 - 1, 0, 1]
    assert fields("vllm", gen)["seed"] == 2**63 - 1
    assert "seed" not in fields("anthropic", gen)


def test_no_limit_is_said_or_refused() -> None:
    endless = Gen(sampling=Sampling(max_tokens=None))
    assert "max_tokens" not in fields("vllm", endless)
    assert fields("llama-server", endless, "completions")["max_tokens"] == -1
    with pytest.raises(InvalidRequest) as refused:
        fields("vllm", endless, "completions")
    assert refused.value.param == "max_tokens"


def test_logprobs_are_asked_for_as_each_endpoint_does() -> None:
    gen = Gen(sampling=Sampling(max_tokens=8), logprobs=LogprobSpec(top=2))
    assert fields("vllm", gen)["logprobs"] is True
    assert fields("vllm", gen)["top_logprobs"] == 2
    assert fields("vllm", gen, "completions")["logprobs"] == 2
    alone = Gen(sampling=Sampling(max_tokens=8), logprobs=LogprobSpec())
    assert fields("vllm", alone)["top_logprobs"] == 0
    for name in ("llama-server", "lmdeploy"):  # without alternatives they report nothing
        assert fields(name, alone)["top_logprobs"] == 1
        assert fields(name, alone, "completions")["logprobs"] == 1
    for name, spec in (("lmstudio", LogprobSpec()), ("vllm", LogprobSpec(top=21))):
        with pytest.raises(InvalidRequest, match=DIALECTS[name].title):
            fields(name, Gen(sampling=Sampling(max_tokens=8), logprobs=spec))
    with pytest.raises(InvalidRequest, match="processed"):
        fields("vllm", Gen(sampling=Sampling(max_tokens=8), logprobs=LogprobSpec(mode="processed")))


def test_too_many_stops_are_refused() -> None:
    gen = Gen(sampling=Sampling(max_tokens=8, stop=("a", "b", "c", "d", "e")))
    with pytest.raises(InvalidRequest, match="OpenAI can't honour more than 4 stop strings"):
        fields("openai", gen)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (GrammarSpec(kind="regex", text="a", after="</think>"), "after"),
        (GrammarSpec(kind="json_object", whitespace="compact"), "whitespace"),
        (GrammarSpec(kind="json_schema", text="{}", best_effort=True), "best_effort"),
    ],
)
def test_what_a_constraint_says_besides_is_refused(spec: GrammarSpec, what: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fields("vllm", Gen(sampling=Sampling(max_tokens=8), grammar=spec))
    assert refused.value.param == what


def test_an_unknown_dialect_lists_the_others() -> None:
    with pytest.raises(InvalidRequest, match=r"no dialect 'vlm'.*vllm, sglang"):
        dialect("vlm")


# -- which server it is ------------------------------------------------------------------------------


def models(owner: str, *ids: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": id, "owned_by": owner} for id in ids or ("m",)]}


def found(answers: dict[str, Any], url: str = "http://host:8000") -> Detected:
    server = WireServer(answers)
    return runtime_loop().submit(detect(url, server.options())).result(timeout=10)


@pytest.mark.parametrize(
    ("owner", "more", "name"),
    [
        ("vllm", {}, "vllm"),
        ("vllm", {"/v1/metadata": {"modelInfo": []}}, "nim"),
        ("sglang", {}, "sglang"),
        ("llamacpp", {}, "llama-server"),
        ("tensorrt_llm", {}, "tensorrt-llm"),
        ("lmdeploy", {}, "lmdeploy"),
        ("library", {"/api/version": {"version": "0.12.11"}}, "ollama"),
        ("someone", {"/props": {"default_generation_settings": {}}}, "llama-server"),
        (
            "me",
            {"/openapi.json": {"info": {"title": "🦙 llama.cpp Python API"}}},
            "llama-cpp-python",
        ),
        ("organization_owner", {"/api/v0/models": {"data": []}}, "lmstudio"),
        ("someone", {"/get_model_info": {"model_path": "m"}}, "sglang"),
        ("someone", {}, "compatible"),
    ],
)
def test_a_server_is_known_by_what_it_says(owner: str, more: dict[str, Any], name: str) -> None:
    assert found({"/v1/models": models(owner), **more}) == Detected(name, ("m",))


def test_services_are_known_by_their_address() -> None:
    assert known_host("https://api.openai.com/v1") == "openai"
    assert known_host("https://mine.openai.azure.com/openai/v1") == "openai"
    assert known_host("https://api.anthropic.com") == "anthropic"
    assert known_host("http://localhost:8000") is None


@pytest.mark.parametrize(
    ("url", "root", "prefix"),
    [
        ("http://h:1", "http://h:1", "/v1"),
        ("http://h:1/v1/", "http://h:1", "/v1"),
        ("https://h/api/v1", "https://h/api", "/v1"),
        ("https://h/other", "https://h/other", ""),
    ],
)
def test_addresses_with_and_without_version(url: str, root: str, prefix: str) -> None:
    assert Address.of(url) == Address(root, prefix)


def test_a_server_that_is_none_is_an_error() -> None:
    with pytest.raises(StolonError):
        found({})
    with pytest.raises(BackendUnavailable):
        runtime_loop().submit(detect("http://127.0.0.1:9", HTTPOptions())).result(timeout=10)


# -- the documentation -------------------------------------------------------------------------------


def test_the_documented_table_is_this_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    assert table() in text, "run tests/support/dialect_table.py and put its output there"
