"""Named sets of characters: ``\\w``, POSIX classes, Unicode properties, and letters of either case."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from stolon.constrained.regex_build import Ranges, complement, intersect, union

__all__ = [
    "ASCII",
    "DIGIT",
    "ECMA_NEWLINES",
    "ECMA_SPACE",
    "SPACE",
    "WORD",
    "fold_case",
    "posix_class",
    "unicode_digit",
    "unicode_property",
    "unicode_word",
]

ASCII: Ranges = ((0, 0x7F),)
DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = (
    *((9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
ECMA_SPACE: Ranges = union(
    (r for r in SPACE if r != (0x85, 0x85)),
    ((0xFEFF, 0xFEFF),),
)
ECMA_NEWLINES: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))

_POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ASCII,
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_SHORT = {"gc": "generalcategory", "sc": "script", "script": "script"} | {
    "generalcategory": "generalcategory"
}
_BINARY = {
    "alpha": "alphabetic",
    "epres": "emojipresentation",
    "extpict": "extendedpictographic",
    "idc": "idcontinue",
    "ids": "idstart",
    "lower": "lowercase",
    "space": "whitespace",
    "upper": "uppercase",
    "wspace": "whitespace",
    "xidc": "xidcontinue",
    "xids": "xidstart",
}
# Where letters with a case lie; looking everywhere would take a tenth of a second.
_CASED = (
    *((0x41, 0x588), (0x10A0, 0x1100), (0x13A0, 0x1400), (0x1C80, 0x1CC0), (0x1D70, 0x1D90)),
    *((0x1E00, 0x2000), (0x2126, 0x2190), (0x24B0, 0x24F0), (0x2C00, 0x2D30), (0xA640, 0xA7FF)),
    *((0xAB50, 0xABC0), (0xFB00, 0xFB07), (0xFF20, 0xFF60), (0x10400, 0x10500), (0x10570, 0x105C0)),
    *((0x10C80, 0x10D90), (0x118A0, 0x118E0), (0x16E40, 0x16E80), (0x1E900, 0x1E944)),
)


def posix_class(name: str) -> Ranges | None:
    """The set of ``[:name:]``, ASCII; None if there is no such class."""
    return _POSIX.get(name)


def unicode_word() -> Ranges:
    """Letters, marks, digits, connectors and joiners: ``\\w`` of Unicode's TR 18, annex C."""
    return _set("perl", "word")


def unicode_digit() -> Ranges:
    """Decimal digits of all scripts."""
    return _set("generalcategory", "nd")


def unicode_property(text: str) -> Ranges | None:
    """The set of ``\\p{text}``: a general category, script or binary property, names in any form.

    ``name``, ``property=value`` and ``property:value`` are read. None if it is not known.
    """
    name, _, value = text.replace(":", "=").partition("=")
    name, value = _loose(name), _loose(value)
    lines = _lines()
    if value:
        return _known(_SHORT.get(name, ""), value)
    if name == "any":
        return complement(())
    if name == "assigned":
        return complement(_set("generalcategory", "cn"))
    if name == "ascii":
        return ASCII
    # "sc" alone is the category of currency symbols, and "lower" the binary property.
    for property in ("binary", "generalcategory", "script"):
        wanted = _BINARY.get(name, name) if property == "binary" else name
        if (property, wanted) in lines:
            return _set(property, wanted)
    return None


def _known(property: str, value: str) -> Ranges | None:
    return _set(property, value) if (property, value) in _lines() else None


def _loose(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


@functools.cache
def _lines() -> dict[tuple[str, str], str]:
    out = {}
    text = Path(__file__).with_name("unicode_sets.txt").read_text("ascii")
    for line in text.splitlines():
        property, names, ranges = line.split(" ", 2)
        for name in names.split("|"):
            out[property, name] = ranges
    return out


@functools.cache
def _set(property: str, name: str) -> Ranges:
    out = []
    at = 0
    for item in _lines()[property, name].split():
        gap, _, more = item.partition(".")
        low = at + int(gap, 16)
        at = low + (int(more, 16) if more else 0) + 1
        out.append((low, at - 1))
    return union(out)


def fold_case(ranges: Ranges) -> Ranges:
    """The set with every character that equals one of it when case is ignored (simple folding)."""
    spans, orbits = _orbits()
    extra: list[tuple[int, int]] = []
    for low, high in intersect(ranges, spans):
        for code in range(low, high + 1):
            extra.extend((other, other) for other in orbits.get(code, ()))
    return union(ranges, extra)


@functools.cache
def _orbits() -> tuple[Ranges, dict[int, tuple[int, ...]]]:
    """Code points that have others of another case, and those others."""
    by_key: dict[int, list[int]] = {}
    for code in _candidates():
        by_key.setdefault(_fold(code), []).append(code)
    orbits = {code: tuple(orbit) for orbit in by_key.values() if len(orbit) > 1 for code in orbit}
    return union((code, code) for code in orbits), orbits


def _candidates() -> Iterator[int]:
    for low, high in _CASED:
        yield from range(low, high)


def _fold(code: int) -> int:
    """Simple case folding: the full one where that is one character."""
    text = chr(code)
    if unicodedata.category(text) == "Cn":
        return code
    for folded in (text.casefold(), text.lower()):
        if len(folded) == 1:
            return ord(folded)
    return code
