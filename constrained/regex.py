"""Regular expressions: the dialect, and what is refused before compilation.

The dialect is that of Rust's ``regex`` crate: Unicode classes, ``(?P<name>…)`` and
``(?<name>…)``, inline flags ``(?i) (?s) (?x)``. The pattern must match the whole text, so ``^`` at
its start and ``$`` at its end are redundant and allowed; elsewhere they are refused, as are word
boundaries, look-around, back-references, and possessive or atomic groups. A lazy quantifier matches
the same whole texts as a greedy one.
"""

from __future__ import annotations

import re

from stolon.errors import GrammarError

__all__ = ["check_regex"]

_FEATURES: tuple[tuple[str, str], ...] = (
    (r"\(\?<?[=!]", "look-around"),
    (r"\(\?P=|\\[1-9]|\\k<", "a back-reference"),
    (r"\(\?>", "an atomic group"),
    (r"\(\?#", "a comment group"),
    (r"\(\?\(", "a conditional"),
    (r"(?:[*+?]|\{\d+(?:,\d*)?\})\+", "a possessive quantifier"),
    (r"\\[bB<>]", "a word boundary"),
    (r"\\[ZG]", "the anchor \\Z or \\G"),
)
_SCAN = re.compile(
    "|".join(f"(?P<f{i}>{pattern})" for i, (pattern, _) in enumerate(_FEATURES))
    + r"|(?P<escape>\\.)|(?P<open>\[\^?\]?)|.",
    re.DOTALL,
)


def check_regex(pattern: str) -> None:
    """Raise GrammarError that names the feature and its offset, for what can't be honoured."""
    at, depth = 0, 0
    while at < len(pattern):
        found = _SCAN.match(pattern, at)
        assert found is not None
        kind = found.lastgroup or ""
        if depth:
            # Inside a character class only brackets and escapes mean anything here.
            if pattern[at] == "\\":
                at += 2
                continue
            depth += (pattern[at] == "[") - (pattern[at] == "]")
            at += 1
            continue
        if kind == "open":
            depth = 1
        elif kind.startswith("f"):
            name = _FEATURES[int(kind[1:])][1]
            raise GrammarError(
                f"the regex uses {name}, which can't be compiled to an automaton",
                where=f"offset {at}",
                hint="the dialect is Rust's regex syntax, without look-around and back-references",
            )
        at = found.end()
