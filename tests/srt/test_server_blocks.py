"""/blocks: programs on a server, and clients that mean it ill."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import msgspec
import pytest
from support.fake_client import ByteTokenizer, FakeClient
from support.fake_engine import FakeEngine, tiny_chat_template
from support.http_server import ask, events

from stolon.errors import GrammarError
from stolon.srt.client import Served
from stolon.srt.protocol import (
    BLOCKS_VERSION,
    MAX_SEGMENTS,
    ChoiceScore,
    Event,
    Gen,
    LogprobSpec,
    Request,
    Sampling,
    SegmentDone,
    Select,
    SelectResult,
    Text,
    Tokens,
)
from stolon.srt.server import ServerLimits, create_app
from stolon.srt.server.options import EngineOptions
from stolon.srt.server.zmq_client import ZmqEngineClient

BLOCK = Request(
    rid="r1",
    segments=[
        Text("<|im_start|>", special=True),
        Text("hello <|im_end|>"),
        Gen(name="a", sampling=Sampling(seed=1), logprobs=LogprobSpec(top=1)),
        Select(name="c", choices=("yes", "no")),
        Tokens([65]),
    ],
    stream=True,
)


def serve(engine, **options):
    return create_app(engine, served_name="fake", **options)


def post(app, body, **options):
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return ask(app, "POST", "/blocks", content=content, **options)


def test_a_block_is_walked_and_its_events_are_the_answer():
    engine = FakeEngine({"a": "text", "c": "no"})
    answer = post(serve(engine), BLOCK)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *told, end = events(answer.text)
    assert end == "[DONE]"
    direct: list[Event] = []
    again = FakeEngine({"a": "text", "c": "no"})
    again.submit(BLOCK, direct.append)
    while len(direct) < len(told):
        pass
    assert [msgspec.convert(event, Event) for event in told] == direct
    assert engine.requests == [BLOCK]
    # Only what is marked special becomes special tokens.
    assert told[-1]["token_ids"][0] == 257
    assert told[-1]["token_ids"].count(258) == 0


def test_numbers_that_json_lacks_are_spelled():
    class Impossible(FakeClient):
        def _events(self, request):
            score = ChoiceScore(
                text="a",
                token_ids=[1],
                token_logprobs=[-math.inf],
                logprob=-math.inf,
                normalized=-1.5,
            )
            result = SelectResult(text="a", index=0, token_ids=[1], scores=[score])
            yield SegmentDone(rid=request.rid, sample=0, segment=0, result=result)
            yield from super()._events(request)

    answer = post(serve(Impossible()), Request(rid="r", segments=[Text("x"), Gen()]))
    score = events(answer.text)[0]["result"]["scores"][0]
    assert score["logprob"] == "-inf"
    assert score["token_logprobs"] == ["-inf"]
    assert msgspec.convert(score, ChoiceScore, strict=False).logprob == -math.inf


def test_info_tells_what_a_program_needs():
    engine = FakeEngine(chat_template=tiny_chat_template())
    served = msgspec.json.decode(ask(serve(engine), "GET", "/blocks/info").content, type=Served)
    assert served.blocks_version == BLOCKS_VERSION
    assert served.model.name == "fake"
    assert served.tokenizer.fingerprint == engine.tokenizer.fingerprint
    assert served.chat_template is not None
    template = served.chat_template.compile()
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages) == engine.chat_template.render(messages)


def test_info_hides_where_the_model_lies():
    served = ask(serve(FakeClient()), "GET", "/blocks/info").text
    assert "secret" not in served


def test_vocabulary_and_tokenize():
    engine = FakeEngine()
    app = serve(engine)
    table = msgspec.json.decode(ask(app, "GET", "/blocks/vocabulary").content, type=list[bytes])
    assert table == list(engine.tokenizer.token_bytes)
    parts = [("<|im_start|>the", True), ("<|im_end|>", False)]
    body = {"parts": parts, "at_start": True}
    answer = ask(app, "POST", "/blocks/tokenize", json=body).json()
    assert answer == {"ids": engine.tokenizer.encode_parts(parts, at_start=True)}
    assert ask(app, "POST", "/blocks/tokenize", json={"parts": [["a", 1]]}).status_code == 400


def test_an_error_says_what_the_engine_says():
    error = GrammarError("bad pattern", where="offset 3", hint="close it")
    answer = post(serve(FakeEngine({"a": error})), BLOCK)
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert (told["code"], told["message"]) == ("invalid_grammar", "bad pattern")
    assert (told["where"], told["hint"], told["segment"]) == ("offset 3", "close it", None)


def test_an_error_after_the_first_event_ends_the_stream():
    error = GrammarError("bad pattern")
    answer = post(
        serve(FakeEngine({"b": error})),
        Request(rid="r", segments=[Text("x"), Gen(name="a"), Gen(name="b")]),
    )
    assert answer.status_code == 200
    *_, told, end = events(answer.text)
    assert told["error"]["code"] == "invalid_grammar"
    assert end == "[DONE]"


def test_faults_of_the_server_are_not_explained():
    answer = post(serve(FakeEngine({"a": lambda *_: 1 / 0})), BLOCK)
    assert answer.status_code == 500
    assert "Zero" not in answer.text


def change(**fields):
    return msgspec.json.encode(json.loads(msgspec.json.encode(BLOCK)) | fields)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"rid": "r", "segments": [', None),
        (b'{"segments": []}', "rid"),
        (change(colour="red"), "colour"),
        (change(segments=[]), "segments"),
        (change(segments=[{"type": "text", "text": "a", "mood": 1}]), "mood"),
        (change(segments=[{"type": "gen", "sampling": {"heat": 1}}]), "heat"),
        (change(segments=[{"type": "image", "text": "a"}]), None),
        (change(segments=[{"type": "text", "text": "a"}] * (MAX_SEGMENTS + 1)), "segments"),
        (change(segments=[{"type": "tokens", "ids": [1.5]}]), None),
        (change(segments=[{"type": "tokens", "ids": [2**70]}]), None),
        (change(segments=[{"type": "gen", "sampling": {"temperature": "NaN"}}]), None),
        (change(rid="../x"), "rid"),
        (change(rid="x" * 129), "rid"),
        (change(n=0), "n"),
        (change(n=10**9), "n"),
        (change(salt="s" * 257), "salt"),
        (change(priority=2**40), "priority"),
        (b'{"rid": "r", "segments": [{"type": "text", "text": "\\ud800"}]}', None),
        (b'{"rid": "r", "segments": [{"type": "text", "text": "\xff"}]}', None),
        (b'{"rid":' + b"[" * 100_000, None),
    ],
)
def test_what_is_no_block_is_refused(body, param):
    engine = FakeEngine()
    answer = post(serve(engine), body)
    assert answer.status_code == 400, answer.text
    told = answer.json()["error"]
    if param is not None:
        assert param in (told["param"] or "") + told["message"]
    assert engine.requests == []


def test_a_million_segments_are_refused_at_once():
    body = b'{"rid": "r", "segments": [' + b",".join([b'{"type":"text","text":""}'] * 10**6) + b"]}"
    app = serve(FakeEngine())
    assert post(app, body).status_code == 400
    assert post(app, BLOCK).status_code == 200


def test_a_body_over_the_limit_is_413():
    app = serve(FakeEngine(), limits=ServerLimits(max_body_bytes=1000))
    assert post(app, change(segments=[{"type": "text", "text": "a" * 2000}])).status_code == 413
    assert post(app, BLOCK).status_code == 200


def test_text_that_no_context_holds_is_refused():
    app = serve(FakeClient(context_length=8))
    many = Request(rid="r", segments=[Text("a" * 60) for _ in range(20)])
    answer = post(app, many)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_another_version_is_refused():
    answer = post(serve(FakeEngine()), BLOCK, headers={"x-stolon-blocks": "99"})
    assert answer.status_code == 400
    assert "version" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/blocks"),
        ("GET", "/blocks/info"),
        ("GET", "/blocks/vocabulary"),
        ("POST", "/blocks/tokenize"),
    ],
)
def test_the_key_is_needed(method, path):
    app = serve(FakeEngine(), api_key="k")
    assert ask(app, method, path, content=b"{}").status_code == 401
    assert ask(app, method, path, headers={"x-api-key": "k"}).status_code != 401


def test_a_full_queue_is_told_with_a_time_to_wait():
    answer = post(serve(FakeEngine(), limits=ServerLimits(max_queued=0)), BLOCK)
    assert answer.status_code == 429
    assert answer.headers["retry-after-ms"] == "1000"


def test_numbers_that_no_message_holds_are_the_requests_fault():
    process = Path(__file__).parents[1] / "support" / "fake_engine_process.py"
    options = msgspec.json.encode(EngineOptions(model="any")).decode()
    command = [sys.executable, str(process), "--options", options]
    client = ZmqEngineClient(command, ByteTokenizer(), None)
    try:
        app = serve(client)
        bad = Request(rid="r", segments=[Text("x"), Gen(sampling=Sampling(seed=2**70))])
        assert post(app, bad).status_code == 400
        assert post(app, Request(rid="r", segments=[Text("x"), Gen()])).status_code == 200
    finally:
        client.close()
