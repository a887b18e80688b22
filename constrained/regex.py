"""Regular expressions: from their text, in either dialect, to trees, and from trees to Rust's syntax.

Our dialect (docs/regex.md) is for patterns that describe a whole text; ECMAScript's, with the ``u``
flag, for those of JSON Schema, which are searched for in a text.
"""

from __future__ import annotations

from stolon.constrained.regex_parser import parse_ecma_search, parse_regex
from stolon.constrained.regex_print import to_rust

__all__ = ["parse_ecma_search", "parse_regex", "to_rust"]
