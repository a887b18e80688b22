"""Tokens where a literal meets a generation."""

from __future__ import annotations

from support.byte_tokenizer import ByteTokenizer

from stolon.srt.boundary import Boundary


def test_tokens_that_begin_with_healed_bytes_are_listed_once() -> None:
    tokenizer = ByteTokenizer()
    boundary = Boundary(tokenizer)
    ids, healed = boundary.heal(tokenizer.encode("a "), keep=1)
    assert (ids, healed) == (tokenizer.encode("a"), b" ")
    allowed = boundary.starting_with(healed)
    assert allowed.allow.tolist() == [
        id for id, data in enumerate(tokenizer.token_bytes) if data.startswith(b" ")
    ]
    # A block of thousands of generations has one list, not thousands.
    assert boundary.starting_with(b" ") is allowed
    assert boundary.starting_with(b"\n") is not allowed
