"""Languages of strings as lexer expressions over their JSON spelling.

A string has one spelling: quotes, backslashes and control characters are escaped as Python's
``json.dumps(text, ensure_ascii=False)`` does it, and nothing else is. Spelling maps characters one by
one, so it carries intersection and complement over unchanged, and no spelling of a string is the
beginning of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from stolon.constrained.regex_build import Ranges, difference, intersect
from stolon.constrained.schema.language import Language
from stolon.constrained.schema.languages import Languages
from stolon.constrained.schema.rules import Rules

__all__ = ["Quoting", "regex_literal"]

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_RAW_CONTROL: Ranges = ((0, 31),)
_QUOTE, _BACKSLASH = 34, 92
_ESCAPED: Ranges = ((0, 31), (_QUOTE, _QUOTE), (_BACKSLASH, _BACKSLASH))
_META = frozenset("\\.+*?()|[]{}^$/#&~-\"'<>%@ ")

_STRING = r'"([^"\\\x00-\x1F]|\\(["\\bfnrt]|u00(0[0-7bef]|1[0-9a-f])))*"'


def regex_literal(text: str) -> str:
    """A text as a regex that matches it alone."""
    return "".join(_point(ord(c)) for c in text)


def _point(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char == "_"):
        return char
    if char in _META and char not in "\"'<>%@ #&~-":
        return "\\" + char
    if 32 <= code < 127:
        return char if char not in "/" else "\\/"
    return f"\\u{{{code:X}}}"


class Quoting:
    """Prints languages of one `Languages`.

    Args:
        rules: where terminals of the expressions are defined.
        after: text that ends each spelling, after the closing quote.
    """

    def __init__(self, languages: Languages, rules: Rules, after: str = "") -> None:
        self._languages = languages
        self._rules = rules
        self._after = after
        self._end = regex_literal(after)
        self._inner: dict[Language, str] = {}

    def literal(self, word: str) -> str:
        """A Lark literal: the spelling of one string."""
        return json.dumps(json.dumps(word, ensure_ascii=False) + self._after, ensure_ascii=False)

    def terminal(self, language: Language) -> str:
        """An expression for a Lark terminal: the spellings of all strings of a language."""
        if language is self._languages.everything:
            return self._any()
        if language.kind == "and":
            parts: tuple[Language, ...] = language.args[0]
            texts = [self._factor(p) for p in parts]
            if all(p.kind == "not" for p in parts):
                texts.insert(0, self._rules.inside(self._any()))
            return " & ".join(texts)
        if language.kind == "not":
            return f"{self._rules.inside(self._any())} & {self._factor(language)}"
        if language.kind == "or" and self._mixed(language):
            options: tuple[Language, ...] = language.args[0]
            return " | ".join(f"({self.terminal(o)})" for o in options)
        if language.kind == "words":
            return " | ".join(map(self.literal, sorted(language.args[0])))
        return f'/"{self._regex(language)}"{self._end}/'

    def _any(self) -> str:
        return f"/{_STRING}{self._end}/"

    def _factor(self, language: Language) -> str:
        if language.kind == "not":
            return f"~({self.terminal(language.args[0])})"
        return f"({self.terminal(language)})"

    @staticmethod
    def _mixed(language: Language) -> bool:
        return any(o.kind in ("and", "not", "or") for o in language.args[0])

    def _regex(self, language: Language) -> str:
        """Regex text, safe to be followed by a quantifier's operand position in a sequence."""
        if language not in self._inner:
            self._inner[language] = self._print(language)
        return self._inner[language]

    def _print(self, language: Language) -> str:
        args = language.args
        match language.kind:
            case "words":
                return _alternatives(
                    regex_literal(json.dumps(w, ensure_ascii=False)[1:-1]) for w in sorted(args[0])
                )
            case "chars":
                return _spell(args[0])
            case "seq":
                texts = []
                while language.kind == "seq":
                    head, language = language.args
                    texts.append(self._regex(head))
                return "".join((*texts, self._regex(language)))
            case "or":
                return _alternatives(self._regex(o) for o in args[0])
            case "rep":
                inner, low, high = args
                text = self._regex(inner)
                return f"(?:{text})" + _times(low, high)
            case _:
                raise AssertionError(f"{language.kind} inside a regex")


def _alternatives(texts: Iterable[str]) -> str:
    found = list(texts)
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _times(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _spell(ranges: Ranges) -> str:
    """One character of a class, as it is spelled."""
    options = []
    raw = difference(ranges, _ESCAPED)
    if raw:
        inside = "".join(_class_range(a, b) for a, b in raw)
        options.append(f"[{inside}]")
    for code in (_QUOTE, _BACKSLASH):
        if intersect(ranges, ((code, code),)):
            options.append("\\\\" + ('"' if code == _QUOTE else "\\\\"))
    codes = [c for a, b in intersect(ranges, _RAW_CONTROL) for c in range(a, b + 1)]
    if len(codes) == 32:
        options.append(r"\\(?:[bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))")
    else:
        options += ["\\\\" + (_SHORT.get(c) or f"u{c:04x}") for c in codes]
    return _alternatives(options)


def _class_range(low: int, high: int) -> str:
    first = _class_point(low)
    return first if low == high else f"{first}-{_class_point(high)}"


def _class_point(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\u{{{code:X}}}"
