"""A fake engine in the place of every other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon


@contextmanager
def default_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The engine of every program and command until the block ends."""
    fake = FakeEngine({"color": "blue"}, default="fine", chat_template=tiny_chat_template())
    monkeypatch.setattr(stolon, "Engine", lambda *_, **__: fake, raising=False)
    stolon.set_default_backend(fake)
    try:
        yield fake
    finally:
        stolon.set_default_backend(None)
        fake.close()
