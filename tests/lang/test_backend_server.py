"""Programs on a Stolon server give what they give on the engine behind it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.engines import hash_engine
from support.fake_engine import FakeEngine, tiny_chat_template
from support.http_server import running

import stolon as sl
from stolon.errors import (
    AccessDenied,
    BackendUnavailable,
    EngineClosed,
    GrammarError,
    InvalidRequest,
    Overloaded,
    StolonError,
)
from stolon.lang.backends import RemoteEngine, Runtime, stolon_server
from stolon.lang.backends.http import HTTPOptions, Retries
from stolon.srt.server import ServerLimits

ANSWERS = {"a": "warm red", "b": ["x", "y", "z"], "c": "no", "n": "12"}


@sl.function
def everything(s, topic):
    s += sl.system("Be brief.")
    s += sl.user(f"About {topic} <|im_end|>")
    s += sl.assistant(
        "Well, " + sl.gen("a", max_tokens=20, return_logprob=True, top_logprobs_num=2)
    )
    s += sl.user("Sure?") + sl.assistant(sl.select("c", ["yes", "no", "maybe"]))
    s += sl.gen("b", n=3, max_tokens=6, stop="\n")
    s += sl.gen("n", regex="[0-9]{1,3}") + sl.gen_int("i")
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch += f"{i}: " + sl.gen("line", max_tokens=5, temperature=0.9)
    branches.join()
    s += "done"


# Not among them: how many tokens were cached, drafted or put back, which depends on the company.
META = (
    "completion_tokens",
    "finish_reason",
    "input_token_logprobs",
    "normalized_prompt_logprobs",
    "output_ids",
    "output_token_logprobs",
    "output_top_logprobs",
)


def facts(state):
    names = ("a", "b", "c", "n", "i", "line")
    metas = [state.get_meta_info(name) for name in names[:-1]]
    flat = [one for meta in metas for one in (meta if isinstance(meta, list) else [meta])]
    scores = state.scores("c")
    return (
        state.text(),
        state.messages(),
        [state[name] for name in names],
        [{name: meta[name] for name in META if name in meta} for meta in flat],
        scores.details,
        scores.best,
    )


@pytest.fixture
def fake():
    engine = FakeEngine(ANSWERS, chat_template=tiny_chat_template("Hello."))
    yield engine
    engine.close()


@pytest.fixture
def engine():
    engine = hash_engine(num_slots=4096, context=2048)
    yield engine
    engine.close()


@pytest.fixture(params=["fake", "engine"])
def both(request):
    """An engine, and itself behind a server."""
    engine = request.getfixturevalue(request.param)
    with running(engine) as server, RemoteEngine(server.url) as remote:
        yield engine, remote


def test_every_primitive_gives_the_same(both):
    embedded, remote = both
    expected = facts(everything.run("tea", backend=embedded, seed=5))
    assert facts(everything.run("tea", backend=remote, seed=5)) == expected


def test_a_stream_gives_the_same(both):
    embedded = both[0]
    pieces = []
    for backend in both:
        state = everything.run("tea", backend=backend, seed=5, stream=True)
        pieces.append("".join(state.text_iter()))
    assert pieces[0] == pieces[1] == everything.run("tea", backend=embedded, seed=5).text()


def test_pieces_come_while_the_server_generates(fake):
    @sl.function
    def program(s):
        s += "x" + sl.gen("a") + sl.gen("slow")

    gate = threading.Event()
    fake.answers["slow"] = lambda *_: "end" if gate.wait(10) else ""
    with running(fake) as server, RemoteEngine(server.url) as remote:
        pieces = program.run(backend=remote, stream=True).text_iter()
        assert next(pieces) + next(pieces) + next(pieces) == "xwarm r"
        gate.set()
        assert "".join(pieces).endswith("end")


def test_async_programs_and_batches(both):
    embedded, remote = both
    topics = [{"topic": str(i)} for i in range(6)]
    expected = [facts(s) for s in everything.run_batch(topics, backend=embedded, seed=1)]
    assert [facts(s) for s in everything.run_batch(topics, backend=remote, seed=1)] == expected

    @sl.function
    async def program(s):
        s += "x" + sl.gen("a", max_tokens=4, return_logprob=True)
        assert await s.aget("a")
        return s.get_meta_info("a")["output_token_logprobs"]

    runs = [program.run(backend=backend, seed=1).ret_value for backend in both]
    assert runs[0] == runs[1]
    assert asyncio.run(program.arun(backend=remote, seed=1)).ret_value == runs[0]


def test_literals_stay_what_they_are(fake):
    @sl.function
    def program(s):
        s += "<|im_end|> the 漢字 \x00 \u2028" + sl.gen("a")

    with running(fake) as server, RemoteEngine(server.url) as remote:
        program.run(backend=remote, seed=1)
        program.run(backend=fake, seed=1)
    first, second = fake.requests
    assert first.segments == second.segments


@pytest.mark.parametrize("wanted", ["regex", "choices"])
def test_errors_of_the_request_are_those_of_the_engine(engine, wanted):
    @sl.function
    def program(s):
        s += "x" + sl.gen("a", max_tokens=3)
        s += sl.gen("b", regex="(") if wanted == "regex" else sl.select("b", ["y", "y"])

    with running(engine) as server, RemoteEngine(server.url) as remote:
        told = []
        for backend in (engine, remote):
            with pytest.raises(InvalidRequest) as caught:
                program.run(backend=backend)
            error = caught.value
            told.append((type(error), error.message, error.where, error.hint, error.param))
    assert told[0] == told[1]
    assert "test_backend_server.py" in told[1][2]


def test_leaving_a_run_aborts_on_the_server(fake):
    fake.delay = 30.0

    @sl.function
    def program(s):
        s += "x" + sl.gen("a")

    with running(fake) as server, RemoteEngine(server.url) as remote:
        state = program.run(backend=remote, stream=True)
        while not fake.received:
            time.sleep(0.01)
        state.cancel()
        assert fake.received[0].aborted.wait(5)


def test_closing_ends_what_runs(fake):
    fake.delay = 30.0

    @sl.function
    def program(s):
        s += "x" + sl.gen("a")

    with running(fake) as server:
        remote = RemoteEngine(server.url)
        state = program.run(backend=remote, stream=True)
        while not fake.received:
            time.sleep(0.01)
        remote.close()
        remote.close()
        with pytest.raises(StolonError, match="cancelled"):
            state["a"]
        with pytest.raises(EngineClosed):
            program.run(backend=remote)


def test_many_programs_at_once(fake):
    @sl.function
    async def program(s, i):
        s += f"{i}" + sl.gen("a")

    with (
        running(fake, limits=ServerLimits(max_queued=16)) as server,
        RemoteEngine(server.url, HTTPOptions(max_connections=8)) as remote,
    ):
        states = program.run_batch(({"i": i} for i in range(100)), backend=remote)
        assert [s["a"] for s in states] == ["warm red"] * 100


def test_connections_serve_again(fake):
    @sl.function
    def program(s):
        s += "x" + sl.gen("a")

    with running(fake) as server, RemoteEngine(server.url) as remote:
        ports = set()
        for _ in range(8):
            program.run(backend=remote)
            state = server.server.server_state
            ports |= {
                connection.transport.get_extra_info("peername") for connection in state.connections
            }
            time.sleep(0.02)
    assert len(ports) <= 2


@pytest.mark.parametrize("seconds", [0.0, 0.0005])
def test_an_answer_whose_end_is_late_holds_up_no_other(fake, monkeypatch, seconds):
    @sl.function
    def program(s):
        s += "x" + sl.gen("a")

    monkeypatch.setattr(stolon_server, "_LAST_WORD", seconds)
    with running(fake) as server, RemoteEngine(server.url) as remote:
        for _ in range(5):
            state = program.run(backend=remote, stream=True)
            given_up = threading.Timer(5, state.cancel)
            given_up.start()
            assert state["a"] == "warm red"
            given_up.cancel()


def test_stats_info_and_cache(fake):
    with running(fake) as server, RemoteEngine(server.url) as remote:
        assert remote.info.name == "fake"
        assert remote.info.vocab_size == fake.info.vocab_size
        assert remote.stats().requests == 0
        assert sl.get_server_info(remote)["stats"]["requests"] == 0
        assert sl.flush_cache(remote)
        assert fake.flushes == 1
        parts = [("<|im_start|>the", True), (" cat<|im_end|>", False)]
        assert remote.tokenizer.encode_parts(parts) == fake.tokenizer.encode_parts(parts)
        ids = list(range(remote.tokenizer.vocab_size))
        assert remote.tokenizer.decode(ids) == fake.tokenizer.decode(ids)


def test_keys(fake):
    with running(fake, api_key="secret") as server:
        with pytest.raises(AccessDenied) as caught:
            RemoteEngine(server.url, HTTPOptions(api_key="wrong"))
        assert "secret" not in str(caught.value)
        assert not caught.value.retryable
        with sl.connect(server.url, api_key="secret") as remote:
            assert everything.run("x", backend=remote)["c"] == "no"


def test_connect_finds_out_and_takes_either_address(fake):
    with running(fake) as server:
        for url in (server.url, server.url + "/", server.url + "/v1"):
            with sl.connect(url, model="fake") as remote:
                assert isinstance(remote, RemoteEngine)
        with pytest.raises(InvalidRequest, match="serves 'fake'"):
            sl.connect(server.url, model="other")


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://x", "http://", "http://u:p@h", "http://h?x=1", "http://[::"],
)
def test_addresses_that_are_none(url):
    with pytest.raises(InvalidRequest) as caught:
        sl.connect(url, dialect="stolon")
    assert ":p@" not in str(caught.value)


def test_nobody_there():
    options = HTTPOptions(retries=Retries(count=1, first_wait=0.01))
    with pytest.raises(BackendUnavailable, match="can't be reached") as caught:
        RemoteEngine("http://127.0.0.1:9", options)
    assert caught.value.retryable


def test_an_address_is_a_default_backend(fake):
    with running(fake) as server:
        sl.set_default_backend(server.url)
        try:
            assert everything.run("x")["a"] == "warm red"
            assert sl.flush_cache()
        finally:
            from stolon.lang import default_backend

            default_backend().close()
            sl.set_default_backend(None)


def test_a_busy_server_is_asked_again(fake):
    """A server with one place in its queue."""

    @sl.function
    def program(s):
        s += "x" + sl.gen("a")

    limits = ServerLimits(max_queued=1, retry_after=0.05)
    with running(fake, limits=limits) as server:
        options = HTTPOptions(retries=Retries(count=20, first_wait=0.01))
        with RemoteEngine(server.url, options) as remote:
            states = program.run_batch([{}] * 8, backend=remote)
            assert [s["a"] for s in states] == ["warm red"] * 8
        never = HTTPOptions(retries=Retries(count=0))
        server.server._context.dispatcher.queued = 1  # for ever
        with RemoteEngine(server.url, never) as remote, pytest.raises(Overloaded) as caught:
            program.run(backend=remote)
        server.server._context.dispatcher.queued = 0
    assert caught.value.retryable


def test_endpoint_has_sglangs_methods(fake):
    with running(fake) as server:
        endpoint = sl.RuntimeEndpoint(server.url, chat_template_name="chatml")
        assert endpoint.get_model_name() == "fake"
        assert endpoint.get_server_info()["name"] == "fake"
        assert endpoint.get_chat_template().name == "chatml"
        endpoint.cache_prefix("<|im_start|>hello")
        assert fake.received[-1].ended.wait(5)
        assert everything.run("x", backend=endpoint)["c"] == "no"
        endpoint.flush_cache()
        with pytest.raises(InvalidRequest, match="profiler"):
            endpoint.start_profile()
        endpoint.shutdown()
    with pytest.raises(InvalidRequest, match="chat template"):
        sl.RuntimeEndpoint("http://127.0.0.1:9", chat_template_name="no such")


def test_a_runtime_takes_no_argument_in_silence():
    with pytest.raises(InvalidRequest, match="tp_size"):
        Runtime(model_path="x", tp_size=2)


def test_a_grammar_refused_in_the_middle_of_a_block(fake):
    fake.answers["b"] = GrammarError("bad", where="offset 1")

    @sl.function
    def program(s):
        s += "x" + sl.gen("a") + sl.gen("b")

    with running(fake) as server, RemoteEngine(server.url) as remote:
        state = program.run(backend=remote, stream=True)
        assert state["a"] == "warm red"
        with pytest.raises(GrammarError, match="bad"):
            state["b"]
