"""Inputs made to hurt are compiled or refused soon, hold up nobody, and leave everything in order."""

from __future__ import annotations

import contextlib
import gc
import random
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.bombs import BOMBS
from support.grammar_walk import EOS, ids_of, make_vocabulary, spec

from stolon.constrained import GrammarCompiler, Matcher
from stolon.errors import GrammarError
from stolon.srt.heap import settle_heap

SECONDS = 2.0
BYTES = 256 << 20
HELD = 0.008  # a thread that only wants to tick; 5 ms on a machine that does nothing else
STEPS = 32


class Cost(NamedTuple):
    compile: float
    walk: float
    held: float
    peak: int

    def within(self) -> bool:
        return max(self.compile, self.walk) < SECONDS and self.held < HELD and self.peak < BYTES


class Heart:
    """Ticks each millisecond; `worst` is the longest time that it could not, for want of the GIL.

    Time in which the process used no processor is the machine's, not ours, and so is that in which its
    thread stood ready for one.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        last, used, ready = time.perf_counter(), time.process_time(), ready_time()
        while not self._stop.is_set():
            time.sleep(0.001)
            now, used_now, ready_now = time.perf_counter(), time.process_time(), ready_time()
            late = now - last - 0.001 - (ready_now - ready)
            self.worst = max(self.worst, min(late, used_now - used))
            last, used, ready = now, used_now, ready_now


def ready_time() -> float:
    """Seconds that this thread stood ready and had no processor; 0 where the system does not say."""
    try:
        with Path("/proc/thread-self/schedstat").open("rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(make_vocabulary(), cache_entries=4)
    compiler.vocabulary.tokenizer  # noqa: B018
    settle_heap()  # as a process that serves does
    yield compiler
    gc.unfreeze()
    compiler.close()


@pytest.fixture(scope="module")
def heart() -> Iterator[Heart]:
    heart = Heart()
    yield heart
    heart.stop()


def walk(matcher: Matcher, rng: random.Random) -> None:
    """A few steps as the engine takes them: forced tokens, else one that the mask allows."""
    for _ in range(STEPS):
        tokens = matcher.forced()[:STEPS]
        if not tokens:
            allowed = sorted(ids_of(matcher.mask()) - {EOS})
            if not allowed or matcher.error is not None or matcher.finished:
                return
            tokens = [rng.choice(allowed)]
        for token in tokens:
            if not matcher.accept(token):
                assert matcher.error is not None  # it may become too complex, but it says so
                return


def cost(compiler: GrammarCompiler, heart: Heart, name: str) -> Cost:
    kind, text = BOMBS[name]()
    bomb = spec(kind, text)
    before = high_water(reset=True)
    time.sleep(0.005)  # the tick that what came before held up
    heart.worst = 0.0
    begun = time.perf_counter()
    grammar = None
    with contextlib.suppress(GrammarError):
        grammar = compiler.compile(bomb)
    compiled = time.perf_counter()
    time.sleep(0.003)  # the tick that its end held up
    held = heart.worst
    resumed = time.perf_counter()
    if grammar is not None:
        walk(grammar.start(), random.Random(1))
    return Cost(compiled - begun, time.perf_counter() - resumed, held, high_water() - before)


def high_water(*, reset: bool = False) -> int:
    """The most memory that was in use since the last reset, in bytes."""
    if reset:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("name", BOMBS)
def test_bomb(name: str, compiler: GrammarCompiler, heart: Heart) -> None:
    spent = cost(compiler, heart, name)
    for _ in range(2):
        # Again, with a cache that forgot it: another program may have had the processor.
        if spent.within():
            break
        compiler._cache.clear()
        spent = cost(compiler, heart, name)
    assert spent.within(), spent
    ordinary = compiler.compile(spec("json_schema", {"const": name})).start()
    assert ordinary.mask().allows(ord('"')) or ordinary.forced()


def test_refusals_are_readable(compiler: GrammarCompiler) -> None:
    for name in ("json_schema self", "regex unclosed", "lark deep", "choice too_many"):
        kind, text = BOMBS[name]()
        with pytest.raises(GrammarError) as caught:
            compiler.compile(spec(kind, text))
        assert 0 < len(str(caught.value)) < 500
