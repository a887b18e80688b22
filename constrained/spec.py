"""What a caller asks the output to be, before anything is compiled."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal[
    "choice", "regex", "json_schema", "json_object", "ebnf", "lark", "structural_tag"
]


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint on generated text, as plain data that can cross a process boundary.

    Attributes:
        kind: which language `text` is written in.
        text: the pattern, grammar or schema. For ``json_schema`` the schema's JSON text; for ``choice``
            a JSON array of strings; empty for ``json_object`` (any JSON object); for ``structural_tag`` the
            JSON text of constrained spans in free text (see `structural`).
        whitespace: for JSON kinds, ``compact`` (no optional whitespace) or ``pep`` (one space after
            ``,`` and ``:``, as Python's json.dumps writes; the default). Both are bounded, so output
            can't run away in legal blanks.
        after: free text comes first, up to the first time that it says this, which belongs to the output: the
            end of a reasoning section, as in ``</think>``. Empty: the constraint holds from the beginning.
        best_effort: for ``json_schema``, leave out keywords that can't be enforced instead of refusing
            the schema; the compiled grammar lists them as `dropped`.
    """

    kind: GrammarKind
    text: str = ""
    whitespace: Literal["compact", "pep"] = "pep"
    best_effort: bool = False
    after: str = ""
