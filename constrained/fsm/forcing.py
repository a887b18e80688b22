"""Forced bytes as tokens: the tokenizer's own, and only those that no continuation can change."""

from __future__ import annotations

from typing import Any

from stolon.constrained.vocabulary import Vocabulary

__all__ = ["MAX_BYTES", "canonical_run"]

MAX_BYTES = 1024  # a longer run goes on once this part is accepted; more would hold up the engine
MAX_TOKENS = 1024
PROBES = 24
MAX_ENDING = 64


def canonical_run(
    vocabulary: Vocabulary, automaton: Any, context: list[int], text: bytes, after: int
) -> list[int]:
    """The tokens of `text`, which must come next, after the tokens of `context`.

    They are what the tokenizer makes of the whole text, whatever follows: all that lie before a place
    that no token crosses, and none that changes in trials with allowed tokens and with a short
    ending. There are none at all if the context isn't tokenized as it stands.

    Args:
        automaton: for `mergeable`.
        context: the last tokens before; at the beginning of a text, all of them.
        after: the automaton's state after `text`.
    """
    before = b"".join(vocabulary.token_bytes[token] for token in context)
    while context and not _begins_character(before):
        before = before[len(vocabulary.token_bytes[context[0]]) :]
        context = context[1:]
    if not _begins_character(before + text):
        return []
    cut, more = _uncertain(vocabulary, automaton, before + text, after)
    if cut <= len(before):
        return []
    run = _tokens(vocabulary, context, before, text)
    if run is None:
        return []
    run = _within(vocabulary, run, cut - len(before))
    for beyond in more if run else ():
        other = _tokens(vocabulary, context, before, text + beyond)
        if other is None:
            return []
        run = _common(run, other)
    return run[:MAX_TOKENS]


def _uncertain(
    vocabulary: Vocabulary, automaton: Any, text: bytes, after: int
) -> tuple[int, list[bytes]]:
    """Up to where the tokens of `text` are sure, and ways in which it may go on."""
    if automaton.closed(after):
        return len(text), []
    cut, more = automaton.mergeable(after, text, PROBES)
    ending = automaton.shortest(after, MAX_ENDING)
    if ending:
        more.append(b"".join(vocabulary.token_bytes[token] for token in ending))
    return cut, more


def _tokens(
    vocabulary: Vocabulary, context: list[int], before: bytes, text: bytes
) -> list[int] | None:
    """Tokens of `text` after `context`; None if the context would be other tokens then."""
    whole = before + text
    try:
        ids = vocabulary.encode(whole.decode())
    except UnicodeDecodeError as error:
        # The text ends within a character: what comes before that is tokenized.
        if error.start <= len(before):
            return None
        ids = vocabulary.encode(whole[: error.start].decode())
        whole = whole[: error.start]
    if ids[: len(context)] != context:
        return None
    if b"".join(vocabulary.token_bytes[token] for token in ids) != whole:
        return None  # the tokenizer adds or changes characters
    return ids[len(context) :]


def _within(vocabulary: Vocabulary, tokens: list[int], size: int) -> list[int]:
    """The tokens that end within `size` bytes."""
    at = 0
    for i, token in enumerate(tokens):
        at += len(vocabulary.token_bytes[token])
        if at > size:
            return tokens[:i]
    return tokens


def _common(a: list[int], b: list[int]) -> list[int]:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return a[:i]
    return a[: len(b)]


def _begins_character(text: bytes) -> bool:
    return not text or text[0] & 0xC0 != 0x80
