"""The process that judges: cases come in as JSON lines, replies go out. It may be killed."""

from __future__ import annotations

import signal
from typing import BinaryIO

import msgspec

from stolon.constrained.check.cases import Case, Setup
from stolon.constrained.check.judge import Judge
from stolon.constrained.vocabulary import Vocabulary

__all__ = ["READY", "serve"]

READY = b'"ready"'


def serve(vocabulary: Vocabulary, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until the input ends. The first line is a `Setup`, every other a `Case`."""
    # An interrupt is meant for the command, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    judge = Judge(vocabulary, msgspec.json.decode(source.readline(), type=Setup))
    _send(sink, READY)
    for line in source:
        _send(sink, msgspec.json.encode(judge.judge(msgspec.json.decode(line, type=Case))))


def _send(sink: BinaryIO, line: bytes) -> None:
    sink.write(line + b"\n")
    sink.flush()
