"""The engine process and its client, over real sockets."""

import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import support.fake_engine_process
from support.fake_client import ByteTokenizer, FakeClient
from support.http_server import ask
from support.ports import listening_ports

from stolon.constrained import GrammarSpec
from stolon.errors import EngineClosed, InvalidRequest, ModelNotFound
from stolon.srt.protocol import (
    Delta,
    Failed,
    Finish,
    Gen,
    GenResult,
    LogprobSpec,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    Text,
    TokenLogprob,
    Tokens,
)
from stolon.srt.server import create_app, ipc
from stolon.srt.server.options import EngineOptions
from stolon.srt.server.zmq_client import ZmqEngineClient

SCRIPT = support.fake_engine_process.__file__


def start(model: str = "fake") -> ZmqEngineClient:
    options = msgspec.json.encode(EngineOptions(model=model)).decode()
    return ZmqEngineClient([sys.executable, SCRIPT, "--options", options], ByteTokenizer(), None)


@pytest.fixture(scope="module")
def client():
    client = start()
    yield client
    client.close()


def request(rid: str, **options) -> Request:
    return Request(rid=rid, segments=[Text("ab"), Gen(logprobs=LogprobSpec(top=1))], **options)


def collect(client, request) -> list:
    """All events of a request."""
    events: queue.Queue = queue.Queue()
    client.submit(request, events.put)
    out, samples = [], request.n
    while samples:
        out.append(events.get(timeout=5))
        if isinstance(out[-1], Failed):
            break
        samples -= isinstance(out[-1], SampleDone)
    return out


@pytest.mark.parametrize(
    "message",
    [
        ipc.Submit(
            Request(
                rid="r",
                segments=[
                    Text("é", special=True),
                    Tokens([1, 2]),
                    Gen(
                        sampling=Sampling(logit_bias={3: -1.5}, stop=("x",)),
                        grammar=GrammarSpec(kind="regex", text="a"),
                    ),
                    Select(choices=("a", "b")),
                ],
            )
        ),
        ipc.Abort("r"),
        ipc.GetStats(1),
        ipc.FlushCache(2),
        ipc.Shutdown(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_commands_round_trip(message):
    assert ipc.unpack_command(ipc.pack(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", ipc.pack(ipc.Ready(FakeClient().info))])
def test_other_bytes_are_no_command(data):
    with pytest.raises(msgspec.MsgspecError):
        ipc.unpack_command(data)


def test_events_round_trip():
    logprobs = [TokenLogprob(5, float("-inf"), [(5, -1.0), (6, -2.0)])]
    result = GenResult(text="x", token_ids=[5], finish=Finish(kind="stop", matched=7))
    message = ipc.Events(
        [
            Delta(rid="r", sample=0, segment=1, text="x", token_ids=[5], logprobs=logprobs),
            SegmentDone(rid="r", sample=0, segment=1, result=result),
            Failed(rid="r", code="aborted", message="m"),
        ]
    )
    assert ipc.unpack_report(ipc.pack(message)) == message


def test_a_generation_through_the_process(client):
    events = collect(client, request("one", n=2, stream=True))
    local = collect(FakeClient("Hello from afar"), request("one", n=2, stream=True))
    assert events == local
    assert client.info == FakeClient().info


def test_many_at_once(client):
    answers = {}

    def one(i):
        answers[i] = collect(client, request(f"many-{i}", stream=True))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(events[0].rid == f"many-{i}" for i, events in answers.items())
    assert len(answers) == 20


def test_errors_of_a_request_arrive_as_failed(client):
    bad = Request(rid="bad", segments=[Text("a"), Gen(grammar=GrammarSpec(kind="regex", text="("))])
    (event,) = collect(client, bad)
    assert event.code == "invalid_grammar"
    assert event.where == "offset 0"


def test_calls(client):
    assert client.stats().kv_slots == 1000
    client.flush_cache()
    client.abort("unknown")


def test_the_folder_is_private_and_sockets_are_local(client):
    assert stat.S_IMODE(client.folder.path.stat().st_mode) == 0o700
    assert {entry.name for entry in client.folder.path.iterdir()} == {"commands", "reports"}
    assert all(stat.S_ISSOCK(entry.stat().st_mode) for entry in client.folder.path.iterdir())
    assert listening_ports([client.process.pid]) == set()


def test_an_engine_that_can_not_start_says_why():
    with pytest.raises(ModelNotFound, match="no model missing") as caught:
        start("missing")
    assert caught.value.hint == "try another"


def test_a_process_that_ends_at_once():
    with pytest.raises(EngineClosed, match="status 3"):
        ZmqEngineClient([sys.executable, "-c", "raise SystemExit(3)"], ByteTokenizer(), None)


def test_death_of_the_engine_fails_what_is_in_flight():
    client = start("stuck")
    app = create_app(client, served_name="fake")
    events: queue.Queue = queue.Queue()
    client.submit(request("r", stream=True), events.put)
    assert isinstance(events.get(timeout=5), Delta)
    os.kill(client.process.pid, signal.SIGKILL)
    failed = events.get(timeout=5)
    assert (failed.rid, failed.code) == ("r", "engine_closed")
    for call in (client.stats, client.flush_cache, lambda: client.submit(request("s"), print)):
        with pytest.raises(EngineClosed):
            call()
    answer = ask(app, "POST", "/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 503
    assert answer.headers["x-should-retry"] == "true"
    assert ask(app, "GET", "/ready").status_code == 503
    assert ask(app, "GET", "/health").status_code == 200
    client.close()
    assert not client.folder.path.exists()


def test_a_request_id_in_use(monkeypatch):
    client = start("stuck")
    client.submit(request("same", stream=True), lambda event: None)
    aborted: list[str] = []
    monkeypatch.setattr(client, "abort", aborted.append)
    with pytest.raises(InvalidRequest, match="in use"):
        client.submit(request("same"), print)
    app = create_app(client, served_name="fake")
    block = {"rid": "same", "segments": [{"type": "text", "text": "a"}, {"type": "gen"}]}
    for path, body in (("/generate", {"text": "a", "rid": "same"}), ("/blocks", block)):
        answer = ask(app, "POST", path, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("rid", "invalid_request")
    assert not aborted  # the first one goes on
    client.close()


def test_close_reaps_and_tidies_up():
    client = start()
    events: queue.Queue = queue.Queue()
    client.close()
    client.close()
    assert client.process.returncode == 0
    assert not client.folder.path.exists()
    with pytest.raises(EngineClosed):
        client.submit(request("late"), events.put)


def test_an_interruption_while_the_engine_loads(monkeypatch, caplog):
    interrupted = []

    def interrupt(client):
        interrupted.append(client)
        raise KeyboardInterrupt

    monkeypatch.setattr(ZmqEngineClient, "_wait_ready", interrupt)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        start("slow")
    assert time.monotonic() - begun < 2
    (client,) = interrupted
    assert client.process.returncode == -signal.SIGTERM
    assert not client.folder.path.exists()
    client._in_flight.take(ipc.Ready(FakeClient().info))  # as of an engine that was ready just then
    assert not caplog.records


def test_an_interruption_while_the_engine_stops(monkeypatch):
    client = start()
    wait, waits = client.process.wait, []

    def interrupt(*timeout):
        waits.append(timeout)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(*timeout)

    monkeypatch.setattr(client.process, "wait", interrupt)
    monkeypatch.setattr(client, "_send", lambda data: None)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert client.process.returncode == -signal.SIGKILL
    assert not client.folder.path.exists()


def test_the_engine_ends_with_its_parent():
    code = (
        "import sys, os, signal; sys.path.insert(0, sys.argv[1])\n"
        "from test_server_ipc import start\n"
        "c = start(); print(c.process.pid, c.folder.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    here = str(Path(__file__).parent)
    tests = str(Path(SCRIPT).parent.parent)
    out = subprocess.run(
        [sys.executable, "-c", code, here],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=20,
    ).stdout
    pid, folder = out.split()
    end = time.monotonic() + 5
    while Path(folder).exists() or Path(f"/proc/{pid}").exists():
        if not Path(folder).exists() and "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            break  # not reaped by init here, but gone
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_engine_process_loads_no_web_framework():
    code = (
        "import sys, stolon.srt.server.engine_process\n"
        "print({'fastapi', 'uvicorn', 'starlette'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
