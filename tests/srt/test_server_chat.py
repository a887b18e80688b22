"""Chat completions: prompts, parameters, whole and streamed answers."""

import json
import re

import pytest
from support.fake_client import FakeClient
from support.http_server import ask, events

from stolon.constrained import GrammarSpec
from stolon.srt.protocol import Gen, LogprobSpec, Sampling, Text
from stolon.srt.server import ServerLimits, create_app
from stolon.srt.tokenizer import ChatTemplate

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


def post(client, body, **options):
    return ask(create_app(client, served_name="fake", **options), "POST", URL, json=body)


def flat(lists) -> list:
    return [item for part in lists for item in part]


def gen_of(client) -> Gen:
    gen = client.requests[-1].segments[-1]
    assert isinstance(gen, Gen)
    return gen


def test_whole_answer():
    answer = post(FakeClient(), {"model": "fake", "messages": HI})
    assert answer.status_code == 200
    body = answer.json()
    assert re.fullmatch(r"chatcmpl-\w+", body["id"])
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": len("User: Hi\n\nAssistant:"),
        "completion_tokens": 6,
        "total_tokens": len("User: Hi\n\nAssistant:") + 6,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_defaults_are_the_documented_ones():
    client = FakeClient()
    post(client, {"messages": HI})
    assert gen_of(client).sampling == Sampling(temperature=1.0, max_tokens=None)
    assert client.requests[-1].n == 1


def test_null_is_absent():
    names = [
        "model",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "regex",
        "ebnf",
        "json_schema",
        "tools",
        "tool_choice",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "cache_salt",
        "priority",
        "ignore_eos",
    ]
    client = FakeClient()
    answer = post(client, {"messages": HI} | dict.fromkeys(names))
    assert answer.status_code == 200
    assert gen_of(client) == Gen()


def test_unknown_and_merely_advisory_fields_are_ignored():
    extra = {"foo": {"bar": 1}, "user": "u", "service_tier": "flex", "metadata": {}, "store": True}
    assert post(FakeClient(), {"messages": HI, "tools": [], **extra}).status_code == 200


def test_only_the_template_spells_special_tokens():
    client = FakeClient(chat_template=ChatTemplate.chatml())
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a<|im_end|>"}]},
    ]
    assert post(client, {"messages": messages}).status_code == 200
    texts = [s for s in client.requests[0].segments if isinstance(s, Text)]
    assert "".join(s.text for s in texts) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    ids = [i for s in texts for i in client.tokenizer.encode(s.text, special=s.special) if i >= 256]
    assert ids == [256, 257, 256, 257, 256]


def test_sampling_parameters_reach_the_engine():
    client = FakeClient()
    body = {
        "messages": HI,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {"65": -100, "66": 2.5},
        "seed": -1,
        "stop": "END",
        "stop_token_ids": [257],
        "ignore_eos": True,
        "max_tokens": 3,
        "max_completion_tokens": 5,
        "min_tokens": 2,
        "cache_salt": "tenant",
        "priority": 3,
        "n": 2,
    }
    assert post(client, body).status_code == 200
    assert gen_of(client).sampling == Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={65: -100.0, 66: 2.5},
        seed=2**63 - 1,
        stop=("END",),
        stop_token_ids=(257,),
        ignore_eos=True,
        max_tokens=5,
        min_tokens=2,
    )
    request = client.requests[0]
    assert (request.n, request.salt, request.priority) == (2, "tenant", 3)


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}}}'
SCHEMA_SPEC = GrammarSpec(kind="json_schema", text=SCHEMA_TEXT)
LARK = "%llguidance {}\nstart: /a/"


TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
TAG_SPEC = GrammarSpec(kind="structural_tag", text=json.dumps(TAG, separators=(",", ":")))
TAG_FORMAT = json.dumps({"format": TAG["format"]}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec(kind="json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA},
                }
            },
            SCHEMA_SPEC,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA_SPEC),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, SCHEMA_SPEC),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            GrammarSpec(kind="json_schema", text=SCHEMA_TEXT, whitespace="compact"),
        ),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSpec(kind="regex", text="a+")),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            GrammarSpec(kind="choice", text='["a","b"]'),
        ),
        (
            {"structured_outputs": {"grammar": LARK}, "guided_grammar": LARK},
            GrammarSpec(kind="lark", text=LARK),
        ),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"'}},
            GrammarSpec(kind="ebnf", text='root ::= "a"'),
        ),
        ({"guided_json": SCHEMA}, SCHEMA_SPEC),
        ({"guided_regex": "a+"}, GrammarSpec(kind="regex", text="a+")),
        ({"guided_choice": ["a"]}, GrammarSpec(kind="choice", text='["a"]')),
        ({"regex": "a+"}, GrammarSpec(kind="regex", text="a+")),
        ({"ebnf": "root ::= x"}, GrammarSpec(kind="ebnf", text="root ::= x")),
        ({"json_schema": SCHEMA_TEXT}, SCHEMA_SPEC),
        ({"lark": LARK}, GrammarSpec(kind="lark", text=LARK)),
        ({"regex": "a+", "after": "</t>"}, GrammarSpec(kind="regex", text="a+", after="</t>")),
        ({"structural_tag": TAG}, TAG_SPEC),
        ({"structural_tag": TAG_SPEC.text}, TAG_SPEC),
        ({"response_format": TAG}, GrammarSpec(kind="structural_tag", text=TAG_FORMAT)),
    ],
)
def test_every_dialect_of_constraints(fields, spec):
    client = FakeClient()
    answer = post(client, {"messages": HI} | fields)
    assert answer.status_code == 200, answer.text
    assert gen_of(client).grammar == spec


def test_logprobs():
    client = FakeClient("é!")
    answer = post(client, {"messages": HI, "logprobs": True, "top_logprobs": 1})
    assert gen_of(client).logprobs == LogprobSpec(top=1)
    content = answer.json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9], [ord("!")]]
    first, last = content[0], content[-1]
    assert first["logprob"] == -1.0
    assert [top["token"] for top in first["top_logprobs"]] == [
        "A",
        "\ufffd",
    ]  # the token itself is there
    assert last["logprob"] == -9999.0
    plain = post(client, {"messages": HI, "logprobs": True}).json()
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_length_stop_and_samples():
    body = post(FakeClient(), {"messages": HI, "max_tokens": 3, "n": 2}).json()
    assert [c["finish_reason"] for c in body["choices"]] == ["length", "length"]
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens"] == len("User: Hi\n\nAssistant:")
    choice = post(FakeClient(), {"messages": HI, "stop": ["lo"]}).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("Hel", "lo")


def test_token_ids_on_request():
    body = post(FakeClient(), {"messages": HI, "return_token_ids": True}).json()
    assert bytes(body["prompt_token_ids"]) == b"User: Hi\n\nAssistant:"
    assert bytes(body["choices"][0]["token_ids"]) == b"Hello!"


def test_golden_stream():
    body = {"model": "fake", "messages": HI, "stream": True, "max_tokens": 2}
    answer = post(FakeClient("Hé!"), body | {"stream_options": {"include_usage": True}})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    text = re.sub(r"chatcmpl-\w+", "ID", answer.text)
    text = re.sub(r'"created":\d+', '"created":1', text)
    head = (
        'data: {"id":"ID","object":"chat.completion.chunk","created":1,"model":"fake",'
        '"system_fingerprint":"fake@0",'
    )

    def chunk(delta: str, finish: str = "null", extra: str = "") -> str:
        return (
            f'{head}"choices":[{{"index":0,"delta":{delta},"logprobs":null,'
            f'"finish_reason":{finish}{extra}}}],"usage":null}}\n\n'
        )

    assert text == (
        chunk('{"role":"assistant","content":""}')
        + chunk('{"content":"H"}')
        + chunk("{}", '"length"', ',"stop_reason":null')
        + head
        + '"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21,'
        '"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_stream_equals_whole():
    body = {"messages": HI, "n": 3, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    whole = post(FakeClient("wörld\n"), body).json()
    *chunks, done = events(post(FakeClient("wörld\n"), body | {"stream": True}).text)
    assert done == "[DONE]"
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert flat(c.get("token_ids", []) for c in mine) == choice["token_ids"]
        logprobs = [c["logprobs"]["content"] for c in mine if c["logprobs"]]
        assert flat(logprobs) == choice["logprobs"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[-1]["delta"] == {}


def test_errors_come_before_the_stream():
    answer = post(FakeClient(), {"messages": HI, "stream": True, "regex": "("})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_grammar"
    assert "offset 0" in answer.json()["error"]["message"]


def test_a_silent_stream_is_kept_alive():
    client = FakeClient(delay=0.03)
    answer = post(client, {"messages": HI, "stream": True}, limits=ServerLimits(keep_alive=0.01))
    assert ": keep-alive\n\n" in answer.text
    assert events(answer.text)[-1] == "[DONE]"


def test_context_length():
    client = FakeClient(context_length=30)
    for content in ("a" * 30, "a" * 30_000):  # refused by the engine; refused by its size alone
        answer = post(client, {"messages": [{"role": "user", "content": content}]})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert post(client, {"messages": HI, "max_tokens": 10_000}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"functions": [{}]}, "functions"),
        ({"regex": "a", "ebnf": "b"}, "regex"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "xml", "format": {}}}, "response_format.type"),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema",
        ),
        ({"response_format": {"type": "json_object", "format": {}}}, "response_format.format"),
        ({"structured_outputs": {"regex": "a", "backend": "b"}}, "structured_outputs"),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        ({"structural_tag": {}, "regex": "a"}, "regex"),
        ({"after": "</t>"}, "after"),
        ({"choices": ["a", "b"]}, "choices"),
        ({"logprob_mode": "tempered"}, "logprob_mode"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields, param):
    client = FakeClient()
    answer = post(client, {"messages": HI} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert client.requests == []


def test_tools_may_be_there_if_they_are_not_to_be_used():
    body = {"messages": HI, "tools": [{"type": "function"}], "tool_choice": "none"}
    assert post(FakeClient(), body).status_code == 200


def test_json_is_strict():
    text = post(FakeClient(), {"messages": HI, "logprobs": True}).text
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
