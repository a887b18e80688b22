"""Context-free rules under construction: productive ones kept, printed as llguidance's Lark."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_

from stolon.constrained.schema.budget import Budget

__all__ = ["Alternatives", "Body", "Lexeme", "Parts", "Ref", "Repeat", "Rules", "option"]


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A terminal expression, or text of the grammar language that stands for non-empty text."""

    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Parts:
    """One after the other."""

    parts: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any of these; none is nothing."""

    options: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times."""

    body: Body
    low: int
    high: int | None


Body = Lexeme | Ref | Parts | Alternatives | Repeat


def option(body: Body) -> Body:
    """The body or nothing at all."""
    return Repeat(body, 0, 1)


class Rules:
    """Named rules; the first one is where texts begin."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._rules: dict[str, Body] = {}
        self._terminals: dict[str, str] = {}
        self._lines: list[str] = []
        self._fresh = 0

    def reserve(self) -> Ref:
        """A new rule whose body comes later."""
        name = f"r{len(self._rules)}"
        self._budget.spend(10)
        self._rules[name] = Alternatives(())
        return Ref(name)

    def define(self, ref: Ref, body: Body) -> None:
        """Set the body of a reserved rule."""
        self._rules[ref.name] = body

    def fresh(self, letter: str) -> str:
        """A name for lines given verbatim."""
        self._fresh += 1
        return f"{letter}{self._fresh}"

    def verbatim(self, use: str, lines: list[str]) -> Lexeme:
        """Lines of grammar that refer to no rule of this object, and how to use them."""
        self._budget.spend(10 * len(lines))
        self._lines.extend(lines)
        return Lexeme(use)

    def terminal(self, expression: str) -> Lexeme:
        """A named terminal of an expression; equal ones share the name."""
        name = self._terminals.setdefault(expression, f"T{len(self._terminals)}")
        return Lexeme(name)

    def text(self) -> str | None:
        """The grammar, without what can't end; None if that leaves nothing."""
        productive = self._productive()
        start = next(iter(self._rules))
        if start not in productive:
            return None
        lines = [f"start: {start}"]
        seen = {start}
        todo = [start]
        used: set[str] = set()
        while todo:
            name = todo.pop()
            # Also where all rules end: inside one, what has no options must not be printed.
            body = _keep(self._rules[name], productive)
            assert body is not None
            found: list[str] = []
            lines.append(f"{name}: {_print(body, found, used, top=True)}")
            for other in found:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        for expression, name in self._terminals.items():
            if name in used:
                lines.append(f"{name}: {expression}")
        return "\n".join(lines + self._lines) + "\n"

    def _productive(self) -> set[str]:
        """The rules that derive a finite text."""
        productive: set[str] = set()
        # Rules mostly refer to later ones, so going backwards finds nearly all at once.
        left = list(reversed(self._rules.items()))
        while True:
            rest = []
            for name, body in left:
                if _ends(body, productive):
                    productive.add(name)
                else:
                    rest.append((name, body))
            if len(rest) == len(left):
                return productive
            left = rest


def _ends(body: Body, productive: set[str]) -> bool:
    match body:
        case Lexeme():
            return True
        case Ref(name):
            return name in productive
        case Parts(parts):
            return all(_ends(p, productive) for p in parts)
        case Alternatives(options):
            return any(_ends(o, productive) for o in options)
        case Repeat(inner, low, _):
            return low == 0 or _ends(inner, productive)


def _keep(body: Body, productive: set[str]) -> Body | None:
    """The body without what has no finite text; the same object where that is nothing."""
    match body:
        case Lexeme():
            return body
        case Ref(name):
            return body if name in productive else None
        case Parts(parts):
            kept = [_keep(p, productive) for p in parts]
            if None in kept:
                return None
            same = all(map(is_, kept, parts))
            return body if same else Parts(tuple(k for k in kept if k is not None))
        case Alternatives(options):
            left = [k for k in (_keep(o, productive) for o in options) if k is not None]
            same = len(left) == len(options) and all(map(is_, left, options))
            return body if left and same else Alternatives(tuple(left)) if left else None
        case Repeat(inner, low, high):
            once = _keep(inner, productive)
            if once is None:
                return None if low else Parts(())
            return body if once is inner else Repeat(once, low, high)


def _is_empty(body: Body) -> bool:
    return isinstance(body, Parts) and not body.parts


def _print(body: Body, refs: list[str], terminals: set[str], *, top: bool = False) -> str:
    """The text of a body; the names that it uses are added to `refs` and `terminals`."""
    match body:
        case Lexeme(text):
            terminals.add(text)
            return text
        case Ref(name):
            refs.append(name)
            return name
        case Parts(parts):
            texts = [_print(p, refs, terminals) for p in parts if not _is_empty(p)]
            return " ".join(texts) if texts else '""'
        case Alternatives(options):
            joined = " | ".join(dict.fromkeys(_print(o, refs, terminals) for o in options))
            return joined if top or len(options) == 1 else f"({joined})"
        case Repeat(inner, low, high):
            if high == 0:
                return '""'
            text = _print(inner, refs, terminals)
            if not isinstance(inner, (Lexeme, Ref)) or " " in text or "::" in text:
                text = f"({text})"
            if (low, high) == (1, 1):
                return text
            if (low, high) == (0, 1):
                return text + "?"
            if high is None and low < 2:
                return text + "*+"[low]
            return text + f"{{{low},{'' if high is None else high}}}"
