"""An engine in a fork of its process: refused at once, never a wait for threads that are not there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import support.fake_engine_process
from support.engines import QUICK, hash_engine
from support.fake_client import ByteTokenizer
from support.forked import error_of, in_fork

from stolon.srt.client import EngineClient
from stolon.srt.engine import Engine
from stolon.srt.protocol import Event, Gen, Request, SampleDone, Text
from stolon.srt.server.options import EngineOptions
from stolon.srt.server.zmq_client import ZmqEngineClient

REFUSAL = (
    "EngineClosed: the engine belongs to another process, which this one was forked from (make"
)


def a_request(rid: str, max_tokens: int = 4) -> Request:
    sampling = msgspec.structs.replace(QUICK, max_tokens=max_tokens)
    return Request(rid=rid, segments=[Text("x"), Gen(sampling=sampling)])


def entries(client: EngineClient) -> list[str]:
    """What every entry raises, once; closing afterwards does no harm."""
    said = [
        error_of(lambda: client.submit(a_request("a"), print)),
        error_of(lambda: client.abort("under way")),
        error_of(client.stats),
        error_of(client.flush_cache),
    ]
    if isinstance(client, Engine):
        said += [
            error_of(lambda: client.generate("x", max_tokens=2)),
            error_of(lambda: client.generate(["x"] * 3, max_tokens=2)),
            error_of(lambda: asyncio.run(client.agenerate("x", max_tokens=2))),
            error_of(client.check_integrity),
        ]
    client.close()
    client.close()
    return said


def test_every_entry_raises_at_once_while_requests_of_the_parent_are_under_way() -> None:
    begun, ended = threading.Event(), threading.Event()

    def on_event(event: Event) -> None:
        begun.set()
        if isinstance(event, SampleDone):
            ended.set()

    with hash_engine() as engine:
        request = msgspec.structs.replace(a_request("under way", 200), stream=True)
        engine.submit(request, on_event)
        assert begun.wait(10)
        # Locks that another thread holds at the fork stay held in the child.
        with engine._intake._lock, engine._loop._wake:
            said = in_fork(lambda: entries(engine))
        assert len(said) == 8
        assert all(line.startswith(REFUSAL) for line in said), said
        assert ended.wait(10)
        assert engine.generate("x", max_tokens=2, ignore_eos=True).token_ids
        engine.check_integrity()


def test_a_fork_makes_an_engine_of_its_own() -> None:
    def generate(engine: Engine) -> list[int]:
        ids: list[int] = engine.generate("x", seed=1, max_tokens=6, ignore_eos=True).token_ids
        return ids

    def anew() -> list[int]:
        with hash_engine() as engine:
            return generate(engine)

    with hash_engine() as engine:
        assert in_fork(anew) == generate(engine)


EXITS = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from support.engines import hash_engine

held, forked = threading.Event(), threading.Event()

def hold():
    with engine._intake._lock, engine._loop._wake:
        held.set()
        forked.wait()

with hash_engine() as engine:
    engine.generate("x", max_tokens=2)
    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    if child == 0:
        sys.exit(7)
    forked.set()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(len(engine.generate("x", max_tokens=2, ignore_eos=True).token_ids))
"""


def test_a_fork_that_leaves_the_with_and_exits_does_not_hang() -> None:
    tests = Path(__file__).parent.parent
    ended = subprocess.run(
        [sys.executable, "-c", EXITS, str(tests)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.split() == ["7", "2"], ended.stderr


def test_the_sockets_of_an_engine_process_are_not_used_in_a_fork() -> None:
    options = msgspec.json.encode(EngineOptions(model="fake")).decode()
    script = support.fake_engine_process.__file__
    assert script is not None
    client = ZmqEngineClient([sys.executable, script, "--options", options], ByteTokenizer(), None)
    try:
        said = in_fork(lambda: entries(client))
        assert len(said) == 4
        assert all(line.startswith(REFUSAL) for line in said), said
        assert client.folder.path.exists()
        assert client.stats().requests == 0
    finally:
        client.close()
