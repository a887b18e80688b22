"""The native route, and tokenize and detokenize."""

import pytest
from support.fake_client import FakeClient
from support.http_server import ask, events

from stolon.constrained import GrammarSpec
from stolon.srt.protocol import LogprobSpec, PromptLogprobs, Sampling
from stolon.srt.server import create_app
from stolon.srt.tokenizer import ChatTemplate


def post(client, body, path="/generate"):
    return ask(create_app(client, served_name="fake"), "POST", path, json=body)


def test_tokens_in_and_out():
    client = FakeClient("Hi")
    body = {
        "input_ids": [65, 66],
        "rid": "mine",
        "sampling_params": {"max_new_tokens": 9, "temperature": 0, "sampling_seed": 5},
        "return_prompt_token_ids": True,
    }
    answer = post(client, body).json()
    meta = answer.pop("meta_info")
    assert answer == {"text": "Hi", "output_ids": [72, 105], "prompt_token_ids": [65, 66]}
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 2, 2)
    assert meta["weight_version"] == "0"
    assert client.requests[0].segments[-1].sampling == Sampling(
        max_tokens=9, temperature=0.0, seed=5
    )


def test_default_length_is_sglangs():
    client = FakeClient()
    post(client, {"text": "a"})
    assert client.requests[0].segments[-1].sampling.max_tokens == 128


def test_batch_and_samples_give_lists():
    answer = post(FakeClient("x"), {"text": ["a", "b"], "sampling_params": {"n": 2}}).json()
    assert [item["text"] for item in answer] == ["x", "x1", "x", "x1"]
    assert isinstance(post(FakeClient(), {"input_ids": [[1]]}).json(), list)
    assert isinstance(post(FakeClient(), {"input_ids": [1]}).json(), dict)


def test_logprobs():
    client = FakeClient("a!")
    body = {
        "input_ids": [65, 66, 67],
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
        "return_text_in_logprobs": True,
    }
    meta = post(client, body).json()["meta_info"]
    assert client.requests[0].prompt_logprobs == PromptLogprobs(start=0, top=1)
    assert client.requests[0].segments[-1].logprobs == LogprobSpec(top=1)
    assert meta["input_token_logprobs"] == [[None, 65, "A"], [-1.0, 66, "B"], [-1.0, 67, "C"]]
    assert meta["output_token_logprobs"] == [[-1.0, 97, "a"], [-9999.0, 33, "!"]]
    assert meta["output_token_logprobs_length"] == 2
    assert meta["input_top_logprobs"][0] is None
    assert meta["output_top_logprobs"][0] == [[-0.5, 65, "A"], [-1.0, 97, "a"]]


def test_stream_is_cumulative():
    body = {"text": "a", "stream": True, "return_logprob": True}
    *chunks, _ = events(post(FakeClient("Hey"), body).text)
    assert [c["text"] for c in chunks] == ["H", "He", "Hey", "Hey"]
    assert [len(c["output_ids"]) for c in chunks] == [1, 2, 3, 3]
    assert [c["meta_info"]["output_token_logprobs_length"] for c in chunks] == [1, 2, 3, 3]
    assert [c["meta_info"]["finish_reason"] is None for c in chunks] == [True, True, True, False]
    *chunks, _ = events(post(FakeClient("H"), {"text": ["a", "b"], "stream": True}).text)
    assert {c["index"] for c in chunks} == {0, 1}


def test_constraints():
    client = FakeClient()
    post(client, {"text": "a", "sampling_params": {"regex": "a+"}})
    assert client.requests[0].segments[-1].grammar == GrammarSpec(kind="regex", text="a+")
    params = {"lark": 'start: "a"', "after": "</think>"}
    post(client, {"text": "a", "sampling_params": params})
    assert client.requests[1].segments[-1].grammar == GrammarSpec(
        kind="lark", text='start: "a"', after="</think>"
    )


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "sampling_params": {"beam_width": 2}}, "beam_width"),
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"input_ids": [[1], 2]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [258]}, "input_ids"),
        ({"text": []}, "text"),
        ({"text": "a", "rid": "../x"}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": "a", "sampling_params": {"n": 1000}}, "n"),
        ({"text": "a", "sampling_params": {"after": "x"}}, "after says"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"text": "a", "top_logprobs_num": 1000}, "top_logprobs_num"),
        ({"text": "a", "logprob_start_len": -5}, "logprob_start_len"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "regex"),
    ],
)
def test_refusals_name_the_field(body, word):
    answer = post(FakeClient(), body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"max_new_tokens": 3, "min_new_tokens": 5}, "min_new_tokens"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"json_schema": '{"type": "integer", "type": "string"}'}, "json_schema"),
        ({"json_schema": '{"type": '}, "json_schema"),
    ],
)
def test_refusals_point_at_the_field_of_the_body(params, field):
    answer = post(FakeClient(), {"text": "a", "sampling_params": params})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"sampling_params.{field}"


def test_tokenize():
    client = FakeClient(chat_template=ChatTemplate.chatml())
    answer = post(client, {"prompt": "ab", "return_token_strs": True}, "/tokenize").json()
    assert answer == {
        "count": 2,
        "max_model_len": 4096,
        "tokens": [97, 98],
        "token_strs": ["a", "b"],
    }
    messages = [{"role": "user", "content": "<|im_end|>"}]
    tokens = post(client, {"messages": messages}, "/tokenize").json()["tokens"]
    assert [t for t in tokens if t >= 256] == [256, 257, 256]
    bare = {"messages": messages, "add_generation_prompt": False}
    assert (
        tokens[: len(post(client, bare, "/tokenize").json()["tokens"])]
        == (post(client, bare, "/tokenize").json()["tokens"])
    )
    assert post(client, {"tokens": tokens}, "/detokenize").json() == {
        "prompt": "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    }


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"messages": []}])
def test_tokenize_refuses(body):
    assert post(FakeClient(), body, "/tokenize").status_code == 400


def test_detokenize_checks_ids():
    assert post(FakeClient(), {"tokens": [258]}, "/detokenize").status_code == 400
