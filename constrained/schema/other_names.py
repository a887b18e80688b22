"""A pattern for every name but some."""

from __future__ import annotations

from collections.abc import Iterable

from stolon.constrained.schema.quoted import regex_literal

__all__ = ["pattern_of_others"]

MAX_CHARACTERS = 4000


def pattern_of_others(names: Iterable[str]) -> str | None:
    """A regex (in Rust's syntax) that matches all strings but `names`; None if it would be long."""
    found = sorted(set(names))
    if sum(map(len, found)) > MAX_CHARACTERS:
        return None
    return f"^(?:{_others(found)})$"


def _others(words: list[str]) -> str:
    """Any text that is none of the words."""
    options = [] if "" in words else [""]
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    if not tails:
        options.append("(?s:.+)")
    else:
        options.append(f"[^{''.join(_in_class(c) for c in tails)}](?s:.*)")
    for char, rest in tails.items():
        # Down to where words part, or end.
        prefix = char
        while len({w[:1] for w in rest}) == 1 and rest[0]:
            options.append(f"{regex_literal(prefix)}(?:[^{_in_class(rest[0][0])}](?s:.*))?")
            prefix += rest[0][0]
            rest = [w[1:] for w in rest]
        options.append(f"{regex_literal(prefix)}(?:{_others(rest)})")
    return "|".join(options)


def _in_class(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\u{{{ord(char):X}}}"
