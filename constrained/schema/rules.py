"""Context-free rules under construction: productive ones kept, printed as llguidance's Lark."""

from __future__ import annotations

from dataclasses import dataclass

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


_EMPTY = '""'

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
        self._inside: set[str] = set()
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

    def inside(self, expression: str) -> str:
        """The name of a terminal that is read once, for the expressions of other terminals."""
        name = self.terminal(expression).text
        self._inside.add(name)
        return name

    def release(self) -> None:
        """Let go of the rules one by one: freeing many at once holds up other threads."""
        while self._rules:
            self._rules.popitem()

    def text(self) -> str | None:
        """The grammar, without what can't end; None if that leaves nothing."""
        productive = self._productive()
        start = next(iter(self._rules))
        if start not in productive:
            return None
        printer = _Printer(productive)
        lines = [f"start: {start}"]
        seen = {start}
        todo = [start]
        while todo:
            name = todo.pop()
            found: list[str] = []
            text = printer.text(self._rules[name], found, top=True)
            assert text is not None
            lines.append(f"{name}: {text or _EMPTY}")
            for other in found:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        lines += [f"{name}: {text}" for text, name in printer.lexemes.items()]
        for expression, name in self._terminals.items():
            if name in printer.lexemes or name in self._inside:
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
    if isinstance(body, Lexeme):
        return True
    if isinstance(body, Ref):
        return body.name in productive
    if isinstance(body, Parts):
        for part in body.parts:  # noqa: SIM110 (half the time of a generator)
            if not _ends(part, productive):
                return False
        return True
    if isinstance(body, Alternatives):
        for option in body.options:  # noqa: SIM110
            if _ends(option, productive):
                return True
        return False
    return body.low == 0 or _ends(body.body, productive)


class _Printer:
    """Prints bodies without what has no finite text.

    Attributes:
        lexemes: rules that stand for one lexeme each, by its text. llguidance works a lexeme out anew at each
            place that spells it out.
    """

    def __init__(self, productive: set[str]) -> None:
        self._productive = productive
        self.lexemes: dict[str, str] = {}

    def text(self, body: Body, names: list[str], *, top: bool = False) -> str | None:
        """The text of a body, empty for no text at all; None if it has no finite text.

        The names of rules in it are added to `names`.
        """
        if isinstance(body, Lexeme):
            if "::" in body.text:  # a rule with a parameter
                return body.text
            return self.lexemes.setdefault(body.text, f"l{len(self.lexemes)}")
        if isinstance(body, Ref):
            if body.name not in self._productive:
                return None
            names.append(body.name)
            return body.name
        before = len(names)
        if isinstance(body, Parts):
            top = top and len(body.parts) == 1
            texts = []
            for part in body.parts:
                text = self.text(part, names, top=top)
                if text is None:
                    del names[before:]
                    return None
                if text:
                    texts.append(text)
            return " ".join(texts)
        if isinstance(body, Alternatives):
            options = [self.text(option, names) for option in body.options]
            found = dict.fromkeys([text or _EMPTY for text in options if text is not None])
            if not found:
                return None
            joined = " | ".join(found)
            return joined if top or len(found) == 1 else f"({joined})"
        text = self.text(body.body, names)
        low, high = body.low, body.high
        if high == 0 or text is None:
            del names[before:]
            return "" if high == 0 or low == 0 else None
        return _repeated(text or _EMPTY, body.body, low, high)


def _repeated(text: str, inner: Body, low: int, high: int | None) -> str:
    if not isinstance(inner, (Lexeme, Ref)) or " " in text or "::" in text:
        text = f"({text})"
    if (low, high) == (1, 1):
        return text
    if (low, high) == (0, 1):
        return text + "?"
    if high is None and low < 2:
        return text + "*+"[low]
    return text + f"{{{low},{'' if high is None else high}}}"
