"""A program whose answers only the seed and the prompt decide, for batches that are resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.fake_engine import FakeEngine

import stolon as sl
from stolon.srt.protocol import Gen


def from_seed(before: str, segment: Gen) -> str:
    """A text that only the seed and the prompt decide."""
    return f"{before}{segment.sampling.seed}"


def seeded() -> FakeEngine:
    return FakeEngine({"a": from_seed})


@sl.function
def echo(s, i, scale=1):
    s += f"{i}:" + sl.gen("a")
    return i * scale


def items(count: int) -> list[tuple[int]]:
    return [(i,) for i in range(count)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
