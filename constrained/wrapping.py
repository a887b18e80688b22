"""What stands before a constrained text: literal bytes, and a section of free text."""

from __future__ import annotations

import json

from stolon.constrained.choices import lark_string
from stolon.errors import GrammarError

__all__ = ["NO_FORCING", "wrapped"]

NO_FORCING = "no_forcing"


def wrapped(source: str, *, prefix: bytes = b"", after: str = "", forcing: bool = True) -> str:
    """llguidance's form of a grammar that comes after other text.

    Args:
        source: of the grammar.
        prefix: literal text in front of everything.
        after: free text comes first, up to the first time that it says this.
        forcing: without it llguidance computes no forced runs: a Lark terminal that nothing can end, as
            in ``/a+/ "ab"``, would keep it busy for ever, with no limit that stops it.
    """
    if not prefix and not after and forcing:
        return source
    try:
        parts = [lark_string(prefix.decode())] if prefix else []
    except UnicodeDecodeError:
        raise GrammarError("the text before a constrained span ends inside a character") from None
    lines = [] if forcing else [f'%llguidance {{"{NO_FORCING}": true}}']
    if after:
        parts.append("before")
    lines.append(f"start: {' '.join(parts)} @inner")
    if after:
        lines.append(rf"before[lazy]: /(.|\n)*/ {lark_string(after)}")
    given = json.loads(source)
    first, *others = given["grammars"]
    outer = {"name": "outer", "lark_grammar": "\n".join(lines) + "\n"}
    return json.dumps({**given, "grammars": [outer, {**first, "name": "inner"}, *others]})
