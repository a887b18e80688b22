"""Shapes as a grammar: every term one rule, every lexeme closed by itself.

Strings end at their closing quote, keys at the colon behind it; at no place is one spelling the beginning of
another. Numbers are followed by ``,``, ``]``, ``}`` or the end. So a greedy lexer reads each text in one way,
and what is forced always ends: it is a beginning of every text of a rule, and each rule that is kept has a
finite one.
"""

from __future__ import annotations

import json
from fractions import Fraction

from stolon.constrained.schema.arrays import ArrayEmitter
from stolon.constrained.schema.blame import blame
from stolon.constrained.schema.decimals import (
    FRACTION,
    NOTHING,
    PRECISE,
    at_least,
    at_most,
    fraction_of,
    multiple_of,
)
from stolon.constrained.schema.language import Language
from stolon.constrained.schema.normaliser import Normaliser
from stolon.constrained.schema.numbers import (
    MAX_BOUNDED,
    MAX_REMAINDERS,
    Numbers,
    digits_of,
    is_fine,
    remainders,
)
from stolon.constrained.schema.objects import ObjectEmitter
from stolon.constrained.schema.quoted import Quoting
from stolon.constrained.schema.rules import Alternatives, Body, Lexeme, Ref, Rules
from stolon.constrained.schema.terms import Term
from stolon.errors import GrammarError

__all__ = ["Emitter"]

_INTEGER = "/-?(0|[1-9][0-9]*)/"
_DECIMAL = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?/"
# An exponent of three digits could lead beyond a double.
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?/"
FAR = 10**15
STEPS_PER_REMAINDER = 3


class Emitter:
    """Builds the grammar of one document.

    Args:
        item_separator: text between items and members.
        key_separator: text after a key.
    """

    def __init__(self, normaliser: Normaliser, item_separator: str, key_separator: str) -> None:
        self.normaliser = normaliser
        self.rules = Rules(normaliser.budget)
        self.separators = (item_separator, key_separator)
        self.comma = lexeme(item_separator)
        self._values = Quoting(normaliser.languages, self.rules)
        self._keys = Quoting(normaliser.languages, self.rules, key_separator)
        self._arrays = ArrayEmitter(self)
        self._objects = ObjectEmitter(self)
        self._refs: dict[Term, Ref] = {}
        self._todo: list[Term] = []

    def grammar(self, root: Term) -> str | None:
        """Lark text of all values of a term; None if there are none."""
        self.value(root)
        while self._todo:
            term = self._todo.pop()
            try:
                self.rules.define(self._refs[term], self._body(term))
            except GrammarError as error:
                error.where = error.where or blame(self.normaliser, term, error.message)
                raise
        return self.rules.text()

    def value(self, term: Term) -> Ref:
        """The rule of a term."""
        if term not in self._refs:
            self._refs[term] = self.rules.reserve()
            self._todo.append(term)
        return self._refs[term]

    def string(self, language: Language) -> Body:
        """The spellings of a language's strings."""
        return self._strings(language, self._values)

    def key(self, language: Language) -> Body:
        """The same as keys: what comes between a key and its value is part of it."""
        return self._strings(language, self._keys)

    def named(self, name: str) -> Lexeme:
        """The key of one name."""
        return Lexeme(self._keys.literal(name))

    def _strings(self, language: Language, quoting: Quoting) -> Body:
        words = language.words
        if words is not None and len(words) <= 32:
            return Alternatives(tuple(Lexeme(quoting.literal(w)) for w in sorted(words)))
        if self.normaliser.languages.is_empty(language):
            return Alternatives(())
        return self.rules.terminal(quoting.terminal(language))

    def _body(self, term: Term) -> Body:
        shape = self.normaliser.shape(term)
        options: list[Body] = []
        if shape.null:
            options.append(lexeme("null"))
        options += [lexeme("true" if b else "false") for b in sorted(shape.booleans)]
        options += [self._number(n) for n in shape.numbers]
        options.append(self.string(shape.strings))
        options += [self._arrays.body(a) for a in shape.arrays]
        options += [self._objects.body(o) for o in shape.objects]
        return Alternatives(tuple(options))

    def _number(self, numbers: Numbers) -> Body:
        point = numbers.point
        if point is not None:
            return lexeme(_decimal(point))
        if numbers.indivisible:
            return self._indivisible(numbers)
        bounded = numbers.low is not None or numbers.high is not None
        if not bounded and numbers.step is None:
            return self.rules.terminal(_NUMBER)
        if not bounded and numbers.step == 1:
            return self.rules.terminal(_INTEGER)
        if numbers.step in (None, 1) and _is_beyond_doubles(numbers):
            kind = _INTEGER if numbers.step else _DECIMAL
            return self.rules.terminal(" & ".join((kind, *_bounds(numbers))))
        schema: dict[str, object] = {"type": "number"}
        step = numbers.step
        if step is not None and step.denominator == 1:
            schema["type"] = "integer"
        if step is not None and step != 1:
            self._spend_on(step, bounded=bounded)
            schema["multipleOf"] = _plain(step)
        if numbers.low is not None:
            schema["exclusiveMinimum" if numbers.low_open else "minimum"] = _plain(numbers.low)
        if numbers.high is not None:
            schema["exclusiveMaximum" if numbers.high_open else "maximum"] = _plain(numbers.high)
        return Lexeme(f"%json {json.dumps(schema)}")

    def _spend_on(self, step: Fraction, *, bounded: bool) -> None:
        cost = remainders(step)
        if bounded and digits_of(step) > MAX_BOUNDED:
            raise GrammarError(
                f"'multipleOf' is too much to be enforced beside bounds: {_plain(step)}"[:200],
                hint="beside 'minimum', 'maximum' and the like up to 10,000 is enforced, "
                "without them up to 50,000",
            )
        if cost > MAX_REMAINDERS:
            raise GrammarError(
                f"'multipleOf' is too much to be enforced: {_plain(step)}"[:200],
                hint="up to 50,000 is enforced, and up to 1,000,000 with zeros at the end",
            )
        self.normaliser.budget.spend(STEPS_PER_REMAINDER * cost)

    def _indivisible(self, numbers: Numbers) -> Body:
        """Numbers that are no multiples of some: whole ones, and ones with a fraction."""
        bounds = _bounds(numbers)
        wholes, fractions = [_INTEGER], [f"/{FRACTION}/", f"/{PRECISE}/"]
        whole: list[str] | None
        fraction: list[str] | None
        wanted = [(n, "~") for n in sorted(numbers.indivisible)]
        for divisor, sign in [*wanted, *([(numbers.step, "")] if numbers.step else [])]:
            if divisor.denominator == 1:
                whole, fraction = multiple_of(divisor.numerator), [NOTHING]
            elif divisor.numerator == 1:
                whole, fraction = [], fraction_of(divisor.denominator)
            else:
                whole = fraction = None
            if whole is None or fraction is None:
                raise GrammarError("'multipleOf' of such a number can't be negated")
            for factors, regexes in ((wholes, whole), (fractions, fraction)):
                text = " & ".join(f"/{r}/" for r in regexes) or _INTEGER
                factors.append(f"{sign}({text})")
        return Alternatives(
            tuple(self.rules.terminal(" & ".join(f + bounds)) for f in (wholes, fractions))
        )


def _is_beyond_doubles(numbers: Numbers) -> bool:
    """Whether llguidance's own ranges, which are of doubles and machine words, do not reach a bound."""
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    return any(abs(bound) > FAR or is_fine(bound) for bound in bounds)


def _bounds(numbers: Numbers) -> list[str]:
    """Terminal factors for the bounds of numbers written without an exponent."""
    regexes = []
    if numbers.low is not None:
        regexes.append(at_least(numbers.low, above=numbers.low_open))
    if numbers.high is not None:
        regexes.append(at_most(numbers.high, below=numbers.high_open))
    if None in regexes:
        raise GrammarError("a bound has no decimal notation")
    return [f"/{regex}/" for regex in regexes]


def lexeme(text: str) -> Lexeme:
    """Exactly this text."""
    return Lexeme(json.dumps(text, ensure_ascii=False))


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _decimal(value: Fraction) -> str:
    return json.dumps(_plain(value))
