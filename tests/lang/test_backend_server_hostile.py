"""Servers that break the protocol: every one is bounded, and an error where the program reads."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest
from support.canned_http import Canned
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import BackendError, BackendUnavailable, StolonError
from stolon.lang.backends.http import HTTPOptions, Retries
from stolon.lang.backends.stolon_server import RemoteEngine
from stolon.srt.client import Served, TokenizerInfo
from stolon.srt.protocol import BLOCKS_VERSION

ENGINE = FakeEngine()
GEN = {"type": "gen_result", "text": "ok", "token_ids": [1], "finish": {"kind": "stop"}}


def info(**changes):
    template = tiny_chat_template().describe()
    served = Served(
        blocks_version=BLOCKS_VERSION,
        model=ENGINE.info,
        tokenizer=TokenizerInfo.of(ENGINE.tokenizer),
        chat_template=template,
    )
    return msgspec.to_builtins(served) | changes


class Body(httpx.AsyncByteStream):
    """An answer in pieces; a callable piece is called."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.sent = 0
        self.closed = False

    async def __aiter__(self):
        for piece in self.pieces:
            self.sent += len(piece)
            yield piece

    async def aclose(self):
        self.closed = True


def connected(answer, *, told=None):
    """A RemoteEngine whose server answers blocks with what `answer` (request as dict) gives."""

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/blocks/info":
            return httpx.Response(200, json=told or info())
        if request.url.path != "/blocks":
            return httpx.Response(404)
        return answer(json.loads(request.content))

    options = HTTPOptions(
        transport=lambda: Canned(handle), retries=Retries(count=1, first_wait=0.001)
    )
    return RemoteEngine("http://hostile", options)


def sse(*events):
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]


@sl.function
def program(s):
    s += "x" + sl.gen("a") + sl.select("c", ["yes", "no"])


def done(request, **changes):
    return {"type": "segment_done", "rid": request["rid"], "sample": 0, "segment": 1} | changes


def delta(request, **changes):
    return {
        "type": "delta",
        "rid": request["rid"],
        "sample": 0,
        "segment": 1,
        "text": "o",
        "token_ids": [1],
    } | changes


def end(request, **changes):
    return {
        "type": "sample_done",
        "rid": request["rid"],
        "sample": 0,
        "token_ids": [1],
        "prompt_tokens": 1,
        "cached_tokens": 0,
    } | changes


def choice(**changes):
    scores = [
        {
            "text": text,
            "token_ids": [1],
            "token_logprobs": [-1.0],
            "logprob": -1.0,
            "normalized": -1.0,
        }
        for text in ("yes", "no")
    ]
    result = {"type": "select_result", "text": "no", "index": 1, "token_ids": [1], "scores": scores}
    return result | changes


BAD = {
    "no json": lambda r: [b"data: {oops\n\n"],
    "not utf-8": lambda r: [b'data: {"type": "\xff"}\n\n'],
    "deep": lambda r: [b"data: " + b"[" * 1_000_000 + b"\n\n"],
    "no event": lambda r: sse({"type": "dance"}),
    "no type": lambda r: sse([1, 2]),
    "missing fields": lambda r: sse({"type": "delta"}),
    "other request": lambda r: sse(done(r, rid="other", result=GEN)),
    "unknown sample": lambda r: sse(done(r, sample=7, result=GEN)),
    "negative sample": lambda r: sse(done(r, sample=-1, result=GEN)),
    "no such segment": lambda r: sse(done(r, segment=99, result=GEN)),
    "about a literal": lambda r: sse(delta(r, segment=0)),
    "delta of a selection": lambda r: sse(delta(r, segment=2)),
    "wrong kind": lambda r: sse(done(r, segment=2, result=GEN)),
    "twice": lambda r: sse(done(r, result=GEN), done(r, result=GEN)),
    "early end": lambda r: sse(end(r)),
    "end without the selection": lambda r: sse(done(r, result=GEN), end(r)),
    "impossible tokens": lambda r: sse(done(r, result=GEN | {"token_ids": [10**6]})),
    "negative tokens": lambda r: sse(delta(r, token_ids=[-1])),
    "other choices": lambda r: sse(
        done(r, result=GEN), done(r, segment=2, result=choice(scores=[]))
    ),
    "wrong index": lambda r: sse(done(r, result=GEN), done(r, segment=2, result=choice(index=5))),
    "other choice": lambda r: sse(done(r, result=GEN), done(r, segment=2, result=choice(text="?"))),
    "unasked prompt": lambda r: sse(
        {"type": "prompt_done", "rid": r["rid"], "token_ids": [], "logprobs": []}
    ),
    "failed event": lambda r: sse(
        {"type": "failed", "rid": r["rid"], "code": "invalid_request", "message": "m"}
    ),
    "huge line": lambda r: (b"x" * 2**20 for _ in range(10**6)),
    "huge event": lambda r: (b"data: " + b"x" * 2**20 + b"\n" for _ in range(10**6)),
    "endless comments": lambda r: (b": hello\n\n" * 2**17 for _ in range(10**6)),
    "endless deltas": lambda r: ((b"".join(sse(delta(r))) * 2**12) for _ in range(10**6)),
    "error of no shape": lambda r: [b'data: {"error": 3}\n\n'],
    "internal error": lambda r: sse({"error": {"message": "m", "code": "internal_error"}}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_server_says(name):
    bodies = []

    def answer(request):
        bodies.append(Body(BAD[name](request)))
        return httpx.Response(200, stream=bodies[-1])

    told = None
    if name.startswith("endless"):  # what it may say grows with the context
        told = info()
        told["model"]["context_length"] = 1024
    with connected(answer, told=told) as remote, pytest.raises(BackendError) as caught:
        program.run(backend=remote)
    assert "hostile" in str(caught.value)
    assert "test_backend_server_hostile.py" in caught.value.where
    assert len(str(caught.value)) < 1000
    assert bodies[0].sent < 200 << 20
    assert all(body.closed for body in bodies)


@pytest.mark.parametrize(
    "pieces",
    [
        lambda r: [],
        lambda r: [b"data: [DONE]\n\n"],
        lambda r: sse(done(r, result=GEN)),
        lambda r: [*sse(done(r, result=GEN)), b"data: [DONE]\n\n"],
        lambda r: sse({"error": {"message": "m", "code": "engine_closed"}}),
    ],
)
def test_an_answer_without_its_end_is_a_lost_connection(pieces):
    with (
        connected(lambda r: httpx.Response(200, stream=Body(pieces(r)))) as remote,
        pytest.raises(BackendUnavailable),
    ):
        program.run(backend=remote)


def test_events_may_come_in_any_pieces_and_from_a_second_attempt():
    attempts = []

    def answer(request):
        attempts.append(request["rid"])
        if len(attempts) == 1:
            return httpx.Response(503, json={"error": {"message": "later", "code": "draining"}})
        whole = b"".join(
            sse(
                done(request, result=GEN),
                done(request, segment=2, result=choice()),
                end(request, token_ids=[1, 2]),
            )
        )
        return httpx.Response(200, stream=Body(bytes([byte]) for byte in whole))

    with connected(answer) as remote:
        state = program.run(backend=remote)
    assert (state["a"], state["c"]) == ("ok", "no")
    # A second attempt has an id of its own: the first may not be over at the server.
    assert len(set(attempts)) == 2


@pytest.mark.parametrize(
    ("status", "kind"), [(500, BackendError), (302, BackendError), (404, BackendError)]
)
def test_other_statuses(status, kind):
    with (
        connected(lambda r: httpx.Response(status, headers={"location": "http://x"})) as remote,
        pytest.raises(kind, match=str(status)),
    ):
        program.run(backend=remote)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks_version": 99},
        {"model": None},
        {"model": info()["model"] | {"context_length": 2**40}},
        {"model": info()["model"] | {"vocab_size": 0}},
        {"tokenizer": info()["tokenizer"] | {"special_tokens": {"x" * 1000: 1}}},
        {"chat_template": {"source": "x" * 2**19, "special_tokens": []}},
        {"chat_template": {"source": "{{", "special_tokens": []}},
        {"chat_template": {"source": "", "special_tokens": [str(i) for i in range(20_000)]}},
    ],
)
def test_what_a_server_says_of_itself_is_checked(changes):
    with pytest.raises(StolonError):
        connected(lambda r: httpx.Response(200), told=info(**changes))


def test_a_template_of_a_server_is_sandboxed():
    source = "{% for i in range(10**9) %}x{% endfor %}"
    told = info(chat_template={"source": source, "special_tokens": []})

    @sl.function
    def chat(s):
        s += sl.user("hi")
        s += sl.assistant(sl.gen("a"))

    with (
        connected(lambda r: httpx.Response(200), told=told) as remote,
        pytest.raises(StolonError, match="template"),
    ):
        chat.run(backend=remote)


def test_spellings_that_do_not_fit_the_vocabulary():
    async def handle(request: httpx.Request) -> httpx.Response:
        answers = {"/blocks/info": info(), "/blocks/vocabulary": ["YQ=="]}
        return httpx.Response(200, json=answers[request.url.path])

    options = HTTPOptions(transport=lambda: Canned(handle))
    with RemoteEngine("http://hostile", options) as remote, pytest.raises(BackendError):
        remote.tokenizer.decode([1])
