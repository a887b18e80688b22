"""One self-contained document in the keywords of draft 2020-12, whatever a schema was written in.

Every reference in the result is a JSON pointer into the result; ids, anchors and dynamic references
are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stolon.constrained.schema.drafts import named
from stolon.constrained.schema.quick import is_plain
from stolon.constrained.schema.references import References
from stolon.constrained.schema.rewriting import Rewriter

__all__ = ["Bundle", "bundle"]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundled schema.

    Attributes:
        document: the schema. The caller's own object, if it was plain already.
        origin: pointers into `document` and where each came from; None if nothing was moved.
    """

    document: Any
    origin: dict[str, str] | None = None

    def where(self, at: str) -> str:
        """What a pointer into the document was in the caller's schema."""
        if self.origin is None:
            return at
        head, tail = at, ""
        while head not in self.origin and head != "/":
            head, _, last = head.rpartition("/")
            head = head or "/"
            tail = f"/{last}{tail}"
        return self.origin.get(head, "/").rstrip("/") + tail or "/"


def bundle(
    root: Any, *, draft: str | None = None, documents: Mapping[str, Any] | None = None
) -> Bundle:
    """Bundle a schema.

    Args:
        root: the schema, as parsed JSON.
        draft: what it is written in, where ``$schema`` does not say: ``2020-12``, ``2019-09``,
            ``draft-07``, ``draft-06``, ``draft-04`` or ``openapi-3.0``.
        documents: other schemas that it may refer to, by absolute address. Nothing else is read.

    Raises:
        GrammarError: a reference leads nowhere or out of what was given, or in a circle; a draft is
            not supported; the result would be too large. `where` points into `root`.
    """
    if not isinstance(root, dict):
        return Bundle(root)
    default = named(draft) if draft else None
    if is_plain(root, default):
        if "$id" in root or "$schema" in root:
            root = {k: v for k, v in root.items() if k not in ("$id", "$schema")}
        return Bundle(root)
    return Bundle(*Rewriter(References(root, documents or {}, default)).run())
