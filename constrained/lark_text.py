"""Lark grammars: the refusal of what would not be enforced."""

from __future__ import annotations

import json
import re

from stolon.constrained.audit import audit_schema
from stolon.errors import GrammarError

__all__ = ["check_lark"]

_ATTRIBUTES = frozenset({"lazy", "suffix"})
_SCAN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"i?)
    | (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<regex>/(?:[^/\\]|\\.)+/[a-z]*)
    | (?P<attributes>\[[^\]]*\](?=\s*:))
    | (?P<directive>%[a-z]+)
    | (?P<special><)
    | (?P<subgrammar>@)
    | .""",
    re.DOTALL | re.VERBOSE,
)


_ESCAPE = re.compile(r"\\(?:0(?P<octal>[0-9]?)|.)", re.DOTALL)


def check_lark(text: str) -> str:
    """The grammar, its JSON schemas in exact form, and ``\\0`` of its regexes as llguidance writes it.

    What is replaced keeps its lines, so that llguidance's refusals have those of `text`.

    Raises:
        GrammarError: for special tokens, references to other grammars, options that are not
            honoured, octal escapes, and schemas that llguidance does not enforce.
    """
    at = copied = 0
    pieces: list[str] = []
    while at < len(text):
        found = _SCAN.match(text, at)
        assert found is not None
        kind, where = found.lastgroup, f"offset {at}"
        at = found.end()
        if kind == "special":
            raise GrammarError("a grammar can't name special tokens", where=where)
        if kind == "subgrammar":
            raise GrammarError("a grammar can't refer to another grammar (@name)", where=where)
        if kind == "attributes":
            for attribute in found.group()[1:-1].split(","):
                name = attribute.split("=")[0].strip()
                if name not in _ATTRIBUTES:
                    raise GrammarError(
                        f"the rule option {name!r} is not supported",
                        where=where,
                        hint="set it on the generation instead",
                    )
        elif kind == "directive":
            exact, end = _directive(found.group(), text, at, where)
            if exact is not None:
                pieces += [text[copied:at], exact]
                copied = end
            at = end
        elif kind == "regex" and "\\0" in found.group():
            pieces += [text[copied : found.start()], _nul_escapes(found.group(), where)]
            copied = at
    return "".join((*pieces, text[copied:]))


def _nul_escapes(regex: str, where: str) -> str:
    def exact(found: re.Match[str]) -> str:
        if found["octal"]:
            raise GrammarError("a regex uses an octal escape", where=where, hint=r"write \xHH")
        return found.group() if found["octal"] is None else r"\x00"

    return _ESCAPE.sub(exact, regex)


def _directive(name: str, text: str, at: int, where: str) -> tuple[str | None, int]:
    """What to put for the JSON after a directive, if anything, and where that ends."""
    if name in ("%ignore", "%regex"):
        return None, at
    if name not in ("%json", "%llguidance"):
        raise GrammarError(f"the directive {name} is not supported", where=where)
    begin = at
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        raise GrammarError(f"{name} must be followed by JSON", where=where) from None
    if name == "%json":
        exact = json.dumps(audit_schema(text[at:end]))
        lines = "\n" * text.count("\n", begin, end)
        return f" {lines}{exact}", end
    if value != {}:
        raise GrammarError("%llguidance options are not supported", where=where)
    return None, end
