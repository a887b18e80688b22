"""Work in a fork of the process of the tests."""

from __future__ import annotations

import json
import os
import select
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest


def in_fork(work: Callable[[], Any], *, seconds: float = 20.0) -> Any:
    """What `work` returns in the child of a fork, as JSON has it. Fails the test if it raises or hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads run is the point
        child = os.fork()
    if child == 0:
        try:
            said = json.dumps([work(), None])
        except BaseException as error:
            said = json.dumps([None, f"{type(error).__name__}: {error}"])
        try:
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            if not select.select([pipe], [], [], seconds)[0]:
                pytest.fail("the child of the fork hangs")
            result, error = json.loads(pipe.read())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert error is None, error
    return result


def error_of(work: Callable[[], object]) -> str:
    """The error that it raises, by its kind and message; what it returns instead."""
    try:
        return f"returned {work()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
