"""The routes over the real engine with a tiny model: what a fake can't show."""

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.http_server import ask, events
from support.tiny_models import tiny_model

from stolon.srt.engine import Engine
from stolon.srt.server import create_app
from stolon.srt.tokenizer import ChatTemplate


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "bos"])
def app(request):
    tokenizer = ByteTokenizer(add_bos=request.param)
    with Engine.from_parts(
        tiny_model("llama"), tokenizer, template=ChatTemplate.chatml(), kv_tokens=2048
    ) as engine:
        yield create_app(engine, served_name="tiny")
        engine.check_integrity()


def post(app, path, body, status=200):
    answer = ask(app, "POST", path, json=body)
    assert answer.status_code == status, answer.text
    return answer


MESSAGES = [{"role": "user", "content": "Hi <|im_end|> you"}]


def test_chat_stream_equals_whole(app):
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": 5, "n": 2, "logprobs": True}
    post(app, "/flush_cache", {})
    whole = post(app, "/v1/chat/completions", body).json()
    post(app, "/flush_cache", {})
    *chunks, _ = events(post(app, "/v1/chat/completions", body | {"stream": True}).text)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        text = "".join(c["delta"].get("content", "") for c in mine)
        assert text == choice["message"]["content"]
        pieces = [c["logprobs"]["content"] for c in mine if c["logprobs"]]
        assert [e for piece in pieces for e in piece] == choice["logprobs"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_the_engine_counts_the_prompt_that_tokenize_shows(app):
    tokens = post(app, "/tokenize", {"messages": MESSAGES}).json()["tokens"]
    body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    answer = post(app, "/v1/chat/completions", body).json()
    assert answer["prompt_token_ids"] == tokens
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    text = post(app, "/tokenize", {"prompt": "the thé"}).json()["tokens"]
    answer = post(app, "/v1/completions", {"prompt": "the thé", "return_token_ids": True}).json()
    assert answer["choices"][0]["prompt_token_ids"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_echoed_logprobs_cover_the_text(app, stream):
    body = {"prompt": "the thé", "max_tokens": 2, "echo": True, "logprobs": 1, "temperature": 0}
    answer = post(app, "/v1/completions", body | {"stream": stream})
    parts = events(answer.text)[:-1] if stream else [answer.json()]
    text = "".join(part["choices"][0]["text"] for part in parts)
    logprobs = [part["choices"][0]["logprobs"] for part in parts]
    tokens, offsets, values = (
        [item for piece in logprobs if piece for item in piece[name]]
        for name in ("tokens", "text_offset", "token_logprobs")
    )
    assert text.startswith("the thé")
    assert values[0] is None
    assert all(value < 0 for value in values[1:])
    for token, offset in zip(tokens, offsets, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert text[offset : offset + len(token)] == token


def test_scores_do_not_depend_on_being_echoed(app):
    ids = list(b"hello")
    scored = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 2}
    first = post(app, "/v1/completions", scored).json()["choices"][0]["logprobs"]
    native = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    meta = post(app, "/generate", native).json()["meta_info"]
    assert [row[0] for row in meta["input_token_logprobs"]] == first["token_logprobs"]


def test_constraints_hold(app):
    body = {"messages": MESSAGES, "guided_choice": ["yes", "no"]}
    answer = post(app, "/v1/chat/completions", body).json()["choices"][0]
    assert answer["message"]["content"] in ("yes", "no")
    assert answer["finish_reason"] == "stop"


def test_errors_of_the_engine_name_the_field(app):
    for body in (
        {"messages": MESSAGES, "regex": "("},
        {"messages": [{"role": "user", "content": "x" * 3000}]},
    ):
        for stream in (False, True):
            answer = post(app, "/v1/chat/completions", body | {"stream": stream}, 400)
            code = answer.json()["error"]["code"]
            assert code == ("invalid_grammar" if "regex" in body else "context_length_exceeded")
    post(app, "/v1/completions", {"prompt": "a", "max_tokens": 100_000, "stop": ["\x00"]})


def test_flush_and_live(app):
    assert post(app, "/flush_cache", {}).json() == {"success": True}
    assert ask(app, "GET", "/live").status_code == 200
    assert ask(app, "GET", "/ready").status_code == 200
