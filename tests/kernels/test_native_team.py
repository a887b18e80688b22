"""The thread team: turns, forks, and what it is made with."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from support.native_programs import floats, packed, plain_step

native = pytest.importorskip(
    "stolon.kernels.cpu._native", reason="the extension is not built", exc_type=ImportError
)


def product(threads: int, rows: int = 12, isa: str = ""):
    """A program of a few stages with its input and its result."""
    team = native.Team(threads, isa)
    weight = floats(1, 80, 48)
    program = native.Program(team)
    x = program.input(48)
    y = program.linear(
        program.norm(x, np.ones(48, np.float32), 1e-6), [packed(native, team, weight)]
    )
    program.output(y)
    program.finish()

    def run() -> np.ndarray:
        out = np.full((rows, 80), np.nan, np.float32)
        program.run(plain_step(native, rows), [floats(2, rows, 48)], [out])
        return out

    return run


def test_instruction_sets():
    sets = native.instruction_sets()
    assert sets[-1] == "portable"
    assert native.Team(1).isa == sets[0]
    for isa in sets:
        team = native.Team(2, isa)
        assert (team.isa, team.threads) == (isa, 2)


@pytest.mark.parametrize("isa", ["avx1024", "AVX512"])
def test_unknown_instruction_set(isa):
    with pytest.raises(ValueError, match=f"Team: isa is '{isa}'.*portable"):
        native.Team(1, isa)


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_number_of_threads(threads):
    with pytest.raises(ValueError, match=f"Team: threads is {threads}"):
        native.Team(threads)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_change_nothing(threads):
    np.testing.assert_array_equal(product(threads)(), product(1)())


def test_wakes_after_sleeping():
    run = product(2)
    first = run()
    time.sleep(0.05)
    np.testing.assert_array_equal(run(), first)


def test_callers_take_turns():
    run = product(2)
    expected = run()
    wrong = []

    def caller():
        for _ in range(50):
            if not np.array_equal(run(), expected):
                wrong.append(1)

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(30)
        assert not thread.is_alive()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_runs():
    run = product(3)
    expected = run()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(run(), expected) else 1)
    deadline = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    np.testing.assert_array_equal(run(), expected)


def test_many_teams_come_and_go():
    for threads in (1, 2, 4, 3) * 5:
        product(threads)


def test_bandwidth():
    team = native.Team(2)
    assert native.bandwidth(team, 1 << 20, 2) > 0.01
    with pytest.raises(ValueError, match="bandwidth: bytes"):
        native.bandwidth(team, 100)
    with pytest.raises(ValueError, match="bandwidth: repeats"):
        native.bandwidth(team, 1 << 20, 0)
