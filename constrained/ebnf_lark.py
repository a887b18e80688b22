"""EBNF grammars for llguidance: Lark grammars of terminals that it can't take for one another."""

from __future__ import annotations

import json
from collections.abc import Iterable

from stolon.constrained.choices import lark_string
from stolon.constrained.ebnf_parser import (
    Expression,
    Options,
    Ref,
    Row,
    Terminal,
    Times,
    parse_ebnf,
)
from stolon.constrained.ebnf_terminals import leaves, with_terminals
from stolon.constrained.regex_ast import Chars
from stolon.constrained.regex_build import intersect, union
from stolon.constrained.regex_print import to_rust
from stolon.errors import GrammarError

__all__ = ["ebnf_source"]

MAX_NESTED = 8
MANY = 64
"""From how many literals in one choice they are told apart by their beginnings."""
MAX_BRANCHES = 64
MAX_OPTIONS = 1_900
"""More in one place than llguidance is allowed to follow (`CompileLimits.row_items`)."""


def ebnf_source(text: str) -> str:
    """llguidance's form of a grammar.

    Raises:
        GrammarError: it can't be read, or has too many alternatives at one place.
    """
    rules = with_terminals(parse_ebnf(text))
    names = {name: f"r{i}" if i else "start" for i, name in enumerate(rules)}
    expressions = {name: _factored(rule) for name, rule in rules.items()}
    printer = _Printer(names, _hidden(expressions.values()))
    renamed = {names[name]: expression for name, expression in expressions.items()}
    return json.dumps({"grammars": [{"lark_grammar": printer.lark(renamed)}]})


def _hidden(expressions: Iterable[Expression]) -> set[str]:
    """The literals that have to be spelled out, one terminal a character.

    llguidance takes the longest terminal, and the grammar has to go on from its end: where "ab" may
    stand, "a" then "b" can't be read. Terminals of which none begins another leave it no choice.
    """
    every = [leaf for expression in expressions for leaf in leaves(expression)]
    texts = {leaf for leaf in every if isinstance(leaf, str)}
    classes = union(*(leaf.ranges for leaf in every if isinstance(leaf, Chars)))
    lengths = sorted({len(text) for text in texts})
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(text)
    firsts = intersect(union((ord(c), ord(c)) for c in by_first), classes)
    singles = [chr(code) for low, high in firsts for code in range(low, high + 1)]
    singles += [
        text[0]
        for text in texts
        if any(text[:length] in texts for length in lengths if length < len(text))
    ]
    hidden: set[str] = set()
    for single in singles:  # grows: each character of what is spelled out is a terminal
        for text in by_first.pop(single, ()):
            hidden.add(text)
            singles.extend(text)
    return hidden


class _Printer:
    def __init__(self, names: dict[str, str], hidden: set[str]) -> None:
        self._names = names
        self._hidden = hidden
        self._todo: list[tuple[str, Expression]] = []

    def lark(self, rules: dict[str, Expression]) -> str:
        """The rules; `rules` has their new names."""
        self._todo = list(rules.items())
        lines = [f"{name}: {self._item(expression)}\n" for name, expression in self._todo]  # grows
        return "".join(lines)

    def _item(self, expression: Expression, depth: int = 0) -> str:
        """The expression as one item; what is nested too deeply for llguidance as a rule."""
        if depth > MAX_NESTED and isinstance(expression, Row | Options | Times):
            name = f"r{len(self._todo)}"
            self._todo.append((name, expression))
            return name
        depth += 1
        if isinstance(expression, str):
            pieces = list(expression) if expression in self._hidden else [expression]
            return _group(" ".join(map(lark_string, pieces)), len(pieces))
        if isinstance(expression, Chars):
            return f"/{to_rust(expression)}/"
        if isinstance(expression, Terminal):
            return f"/{to_rust(expression.tree)}/"
        if isinstance(expression, Ref):
            return self._names[expression.name]
        if isinstance(expression, Row):
            items = [self._item(part, depth) for part in expression.parts]
            return _group(" ".join(items), len(items)) if items else '""'
        if isinstance(expression, Options):
            if len(expression.options) > MAX_OPTIONS:
                raise GrammarError(
                    f"the EBNF has a choice of {len(expression.options):,} alternatives",
                    hint=f"the limit is {MAX_OPTIONS:,} that are no literals, if a rule comes back to itself",
                )
            return _group(" | ".join(self._item(e, depth) for e in expression.options), 2)
        if expression.high == 0:
            return '""'
        high = "" if expression.high is None else expression.high
        times = {"0,": "*", "1,": "+", "0,1": "?"}
        bounds = f"{expression.low},{high}"
        return f"({self._item(expression.item, depth)}){times.get(bounds, f'{{{bounds}}}')}"


def _group(text: str, items: int) -> str:
    return f"({text})" if items > 1 else text


def _factored(expression: Expression) -> Expression:
    """The same, long choices of literals by their beginnings: of each that is tried, an item is kept."""
    if isinstance(expression, Row):
        return Row(tuple(map(_factored, expression.parts)))
    if isinstance(expression, Times):
        return Times(_factored(expression.item), expression.low, expression.high)
    if not isinstance(expression, Options):
        return expression
    texts = {option for option in expression.options if isinstance(option, str)}
    if len(texts) < MANY:
        return Options(tuple(map(_factored, expression.options)))
    others = [_factored(option) for option in expression.options if not isinstance(option, str)]
    return _either([*_by_beginning(sorted(texts), 0), *others])


def _by_beginning(texts: list[str], depth: int) -> list[Expression]:
    """Sorted texts as options of which no two begin alike."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text)
    out: list[Expression] = []
    for group in groups.values():
        first, last = group[0], group[-1]
        if len(group) == 1 or depth > MAX_BRANCHES:
            out.extend(group)
            continue
        shared = next((i for i, c in enumerate(first) if last[i] != c), len(first))
        rest = _either(_by_beginning([t[shared:] for t in group if len(t) > shared], depth + 1))
        out.append(Row((first[:shared], rest if len(first) > shared else Times(rest, 0, 1))))
    return out


def _either(options: list[Expression]) -> Expression:
    return options[0] if len(options) == 1 else Options(tuple(options))
