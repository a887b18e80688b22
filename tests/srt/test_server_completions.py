"""Text completions: prompts, echo and the legacy log-prob shape."""

import pytest
from support.fake_client import FakeClient
from support.http_server import ask, events

from stolon.srt.protocol import PromptLogprobs, Text, Tokens
from stolon.srt.server import ServerLimits, create_app

URL = "/v1/completions"


def post(client, body, **options):
    return ask(create_app(client, served_name="fake", **options), "POST", URL, json=body)


def test_whole_answer():
    client = FakeClient("a reply of more than sixteen tokens")
    body = post(client, {"prompt": "Say"}).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "text": "a reply of more ",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"]["completion_tokens"] == 16
    assert client.requests[0].segments[0] == Text("Say", special=True)


@pytest.mark.parametrize(
    ("prompt", "segments"),
    [
        ("ab", [[Text("ab", True)]]),
        (["ab", "c"], [[Text("ab", True)], [Text("c", True)]]),
        ([1, 2], [[Tokens([1, 2])]]),
        ([[1, 2], [3]], [[Tokens([1, 2])], [Tokens([3])]]),
    ],
)
def test_shapes_of_prompts(prompt, segments):
    client = FakeClient("x")
    body = post(client, {"prompt": prompt, "n": 2}).json()
    requests = sorted(client.requests, key=lambda request: request.rid)
    assert [request.segments[:-1] for request in requests] == segments
    assert [c["index"] for c in body["choices"]] == list(range(2 * len(segments)))
    assert [c["text"] for c in body["choices"]] == ["x", "x1"] * len(segments)
    assert body["usage"]["prompt_tokens"] == sum(
        len(s.text if isinstance(s, Text) else s.ids) for (s,) in segments
    )


@pytest.mark.parametrize(
    "prompt", [None, [], [[]], [1, "a"], [1, [2]], [True], [999], [-1], [1.5], {}]
)
def test_bad_prompts(prompt):
    answer = post(FakeClient(), {"prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")


def test_products_are_capped():
    limits = ServerLimits(max_prompts=4, max_sequences=6)
    client = FakeClient()
    assert post(client, {"prompt": ["a"] * 5}, limits=limits).status_code == 400
    assert post(client, {"prompt": ["a"] * 4, "n": 2}, limits=limits).status_code == 400
    assert post(client, {"prompt": ["a"] * 3, "n": 2}, limits=limits).status_code == 200


def test_echo_with_logprobs_as_evaluations_ask_for_it():
    client = FakeClient("!")
    body = {
        "prompt": list("né".encode()),
        "max_tokens": 1,
        "logprobs": 1,
        "echo": True,
        "seed": 1234,
    }
    choice = post(client, body).json()["choices"][0]
    assert client.requests[0].prompt_logprobs == PromptLogprobs(top=1)
    assert choice["text"] == "né!"
    assert choice["logprobs"] == {
        "tokens": ["n", "bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [None, -1.0, -1.0, -9999.0],
        "top_logprobs": [
            None,
            {"A": -0.5, "bytes:\\xc3": -1.0},
            {"A": -0.5, "bytes:\\xa9": -1.0},
            {"A": -0.5, "!": -9999.0},
        ],
        "text_offset": [0, 1, 1, 2],
    }


def test_echo_without_generating():
    body = {"prompt": "abc", "max_tokens": 0, "logprobs": 0, "echo": True}
    choice = post(FakeClient(), body).json()["choices"][0]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["top_logprobs"] is None
    *chunks, _ = events(post(FakeClient(), body | {"stream": True}).text)
    assert "".join(c["choices"][0]["text"] for c in chunks) == "abc"
    assert chunks[0]["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]


@pytest.mark.parametrize("echo", [False, True])
def test_stream_equals_whole(echo):
    body = {"prompt": ["näh", "b"], "n": 2, "logprobs": 2, "echo": echo, "return_token_ids": True}
    whole = post(FakeClient("wörld"), body).json()
    *chunks, _ = events(
        post(
            FakeClient("wörld"), body | {"stream": True, "stream_options": {"include_usage": True}}
        ).text
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        for name, values in choice["logprobs"].items():
            pieces = [c["logprobs"][name] for c in mine if c["logprobs"]]
            assert [item for piece in pieces for item in piece] == values
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[-1]["prompt_token_ids"] == choice["prompt_token_ids"]


def test_text_offsets_point_into_the_text():
    body = {"prompt": "añb", "logprobs": 1, "echo": True}
    choice = post(FakeClient("xyz"), body).json()["choices"][0]
    logprobs = choice["logprobs"]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset] == token


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_refused_fields(fields, param):
    answer = post(FakeClient(), {"prompt": "a"} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
