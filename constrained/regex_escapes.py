"""Reading a pattern character by character: the cursor, and what follows a backslash."""

from __future__ import annotations

from stolon.constrained.regex_build import Ranges, complement
from stolon.constrained.regex_classes import unicode_property
from stolon.constrained.regex_flags import Flags
from stolon.errors import GrammarError

__all__ = ["Scanner", "read_escape", "refuse"]

_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_HEX = frozenset("0123456789abcdefABCDEF")
_DIALECT = "docs/regex.md has the dialect; what is not a regular language can't be compiled"


def refuse(what: str, at: int) -> GrammarError:
    """The error of a pattern; `what` goes on after "the regex"."""
    return GrammarError(f"the regex {what}", where=f"offset {at}", hint=_DIALECT)


class Scanner:
    """A cursor over a pattern."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def done(self) -> bool:
        return self.at >= len(self.text)

    def peek(self) -> str:
        """The next character; the empty text at the end."""
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        """The next character, passed over; the empty text at the end."""
        c = self.text[self.at : self.at + 1]
        self.at += 1
        return c

    def rest(self, count: int) -> str:
        return self.text[self.at : self.at + count]

    def take_until(self, end: str, *, limit: int = 1 << 30) -> str | None:
        """The text before `end`, both passed over; None (at the end of the pattern) without one."""
        found = self.text.find(end, self.at, min(self.at + limit, len(self.text)))
        if found < 0:
            self.at = len(self.text)
            return None
        text = self.text[self.at : found]
        self.at = found + len(end)
        return text

    def braces(self) -> str | None:
        """The text in braces that comes next, passed over; None, and no move, without."""
        if self.peek() != "{":
            return None
        start = self.at
        self.at += 1
        text = self.take_until("}", limit=80)
        if text is None or text[:1].isdigit() or text[:1] == ",":
            self.at = start  # a quantifier
            return None
        return text

    def hex(self, least: int, most: int) -> int | None:
        """A hexadecimal number of so many digits, passed over; None, and no move, without."""
        end = self.at
        while end < len(self.text) and end - self.at < most and self.text[end] in _HEX:
            end += 1
        if end - self.at < least:
            return None
        value = int(self.text[self.at : end], 16)
        self.at = end
        return value


def read_escape(scan: Scanner, flags: Flags, at: int) -> Ranges:
    """The characters of the escape whose backslash, at `at`, was passed over.

    Raises:
        GrammarError: a back-reference, an anchor, or an escape that the dialect doesn't have.
    """
    if scan.done:
        raise refuse("ends with a backslash", at)
    c = scan.take()
    if (ranges := flags.perl(c)) is not None:
        if c.isupper() and not flags.unicode:
            raise refuse(f"uses \\{c} without Unicode, which matches bytes", at)
        return ranges
    if c in _CONTROLS:
        return _one(_CONTROLS[c])
    if c == "a" and not flags.ecma:
        return _one(7)
    if c in "pP":
        return _property(scan, at, negated=c == "P")
    if c in "xuU":
        return _one(_code_point(scan, flags, c, at))
    if c == "c" and flags.ecma and scan.peek().isascii() and scan.peek().isalpha():
        return _one(ord(scan.take()) % 32)
    if c == "0":
        if scan.peek().isascii() and scan.peek().isdigit():
            raise refuse("uses an octal escape", at)
        return _one(0)
    if c in "123456789" or (c == "k" and scan.peek() in ("<", "'", "{")) or c == "g":
        raise refuse("uses a back-reference", at)
    if c in "AZzG":
        raise refuse(f"uses the anchor \\{c}, which dialects read differently", at)
    if c.isascii() and c.isalnum():
        raise refuse(f"uses the escape \\{c}, which is not known", at)
    return _one(ord(c))


def _one(code: int) -> Ranges:
    return ((code, code),)


def _property(scan: Scanner, at: int, *, negated: bool) -> Ranges:
    text = scan.braces() if scan.peek() == "{" else scan.take()
    if not text:
        raise refuse("has an unclosed property", at)
    if text.startswith("^"):
        text, negated = text[1:], not negated
    name, unequal, value = text.partition("!=")
    if unequal:
        text, negated = f"{name}={value}", not negated
    ranges = unicode_property(text)
    if ranges is None:
        raise refuse(f"uses the Unicode property {text[:40]!r}, which is not known", at)
    return complement(ranges) if negated else ranges


def _code_point(scan: Scanner, flags: Flags, kind: str, at: int) -> int:
    if scan.peek() == "{" and not (flags.ecma and kind != "u"):
        scan.take()
        code = scan.hex(1, 8)
        if scan.take() != "}":
            code = None
    else:
        digits = {"x": 2, "u": 4, "U": 8}[kind]
        code = None if flags.ecma and kind == "U" else scan.hex(digits, digits)
        if code is not None and 0xD800 <= code < 0xDC00 and scan.rest(2) == "\\u":
            scan.at += 2
            low = scan.hex(4, 4)
            if low is not None and 0xDC00 <= low < 0xE000:
                code = 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00
    if code is None or code > 0x10FFFF:
        raise refuse("has a code point that can't be read", at)
    if 0xD800 <= code < 0xE000:
        raise refuse("names half of a surrogate pair, which no text holds", at)
    if kind == "x" and code > 0x7F and not flags.unicode:
        raise refuse("names a byte that is no character", at)
    return code
