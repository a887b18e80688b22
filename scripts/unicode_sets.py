"""Write constrained/unicode_sets.txt: the character sets behind ``\\w``, ``\\d``, ``\\s`` and ``\\p{…}``.

One set a line: ``property value ranges``, each range ``gap.length`` in hexadecimal, counted
from the end of the range before; the length is left out where it is 0. Usage: unicode_sets.py (needs the PyPI
package ``regex``, which carries the Unicode Character Database).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import regex
from regex import _regex_core as core

BINARY = (
    *("ALPHABETIC", "EMOJI", "EMOJIPRESENTATION", "EXTENDEDPICTOGRAPHIC", "LOWERCASE", "UPPERCASE"),
    *("MATH", "IDSTART", "IDCONTINUE", "XIDSTART", "XIDCONTINUE", "WHITESPACE"),
)
TARGET = Path(__file__).resolve().parent.parent / "constrained" / "unicode_sets.txt"


def ranges(pattern: str, text: str) -> str:
    """The characters of a class, encoded."""
    out, at = [], 0
    for found in regex.finditer(f"{pattern}+", text):
        first, last = ord(found[0][0]), ord(found[0][-1])
        for low, high in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last)):
            if low <= high:
                out.append(f"{low - at:x}.{high - low:x}" if high > low else f"{low - at:x}")
                at = high + 1
    return " ".join(out)


def main() -> None:
    text = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    properties: dict[str, Any] = core.PROPERTIES
    lines = ["perl word " + ranges(r"\w", text)]
    for name in ("GENERALCATEGORY", "SCRIPT"):
        aliases: dict[int, list[str]] = {}
        for value, number in properties[name][1].items():
            aliases.setdefault(number, []).append(value)
        for values in aliases.values():
            # A category has two letters; groups of categories are put together when they are read.
            encoded = ranges(rf"\p{{{name}={values[0]}}}", text)
            if encoded and (name == "SCRIPT" or any(len(value) == 2 for value in values)):
                lines.append(f"{name.lower()} {'|'.join(sorted(values)).lower()} {encoded}")
    for name in BINARY:
        lines.append(f"binary {name.lower()} " + ranges(rf"\p{{{name}}}", text))
    TARGET.write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
