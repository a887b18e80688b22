"""Structural tags: free text with constrained spans in it, as tool calls have them.

Two public forms are read: the older one (``structures`` and ``triggers``, as SGLang and vLLM take it)
and the newer one (``format``, a tree of parts). Both become one Lark grammar whose spans are grammars
of their own; a text between them ends, lazily, with the first trigger that it meets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from stolon.constrained.choices import lark_string
from stolon.constrained.json_text import parse_json
from stolon.constrained.spec import GrammarSpec
from stolon.errors import GrammarError

__all__ = ["EBNF_SPAN", "structural_sources"]

EBNF_SPAN = "ebnf_"
"""How the names of spans begin that are written in EBNF."""

MAX_PARTS = 1000
MAX_DEPTH = 32
ANY_TEXT = r"/(.|\n)*/"

Inner = Callable[[GrammarSpec], Iterator[str]]
"""llguidance sources of a span, the cheapest first."""


def structural_sources(text: str, inner: Inner) -> Iterator[str]:
    """llguidance sources of a structural tag, the cheapest first.

    Args:
        text: JSON: ``{"format": {...}}``, or ``{"structures": [{"begin", "schema", "end"}],
            "triggers": [...]}``; a ``type`` of "structural_tag" may stand beside.
        inner: the sources of one constrained span.

    Raises:
        GrammarError: with the JSON pointer in `where`.
    """
    root = parse_json(text)
    for last in (False, True):
        yield _Grammar(inner, last=last).source(root)


class _Grammar:
    """Collects rules and the grammars of spans. `last` takes the last source of each span, not the first."""

    def __init__(self, inner: Inner, *, last: bool) -> None:
        self._inner = inner
        self._last = last
        self._rules: list[str] = []
        self._grammars: list[dict[str, Any]] = []
        self._dropped: list[str] = []
        self._parts = 0

    def source(self, root: Any) -> str:
        body = _object(root, "")
        if body.get("type", "structural_tag") != "structural_tag":
            raise _wrong("/type", 'must be "structural_tag"')
        if "format" in body:
            _only(body, "", "type", "format")
            start = self._format(body["format"], "/format", 0)
        else:
            _only(body, "", "type", "structures", "triggers")
            start = self._older(body)
        lark = "\n".join([f"start: {start}", *self._rules]) + "\n"
        outer = {"name": "structural_tag", "lark_grammar": lark}
        dropped = {"dropped": self._dropped} if self._dropped else {}
        return json.dumps({"grammars": [outer, *self._grammars], **dropped})

    def _older(self, body: dict[str, Any]) -> str:
        tags = []
        for i, given in enumerate(_list(body.get("structures"), "/structures")):
            where = f"/structures/{i}"
            structure = _object(given, where)
            _only(structure, where, "begin", "schema", "end")
            schema = structure.get("schema")
            content = (
                {"type": "any_text"}
                if schema is None
                else {"type": "json_schema", "json_schema": schema}
            )
            tags.append(
                {
                    "type": "tag",
                    "begin": structure.get("begin"),
                    "content": content,
                    "end": structure.get("end", ""),
                }
            )
        triggered = {
            "type": "triggered_tags",
            "triggers": body.get("triggers"),
            "tags": tags,
        }
        return self._triggered(triggered, "")

    def _format(self, given: Any, where: str, depth: int) -> str:
        """A Lark expression of one part; what repeats or chooses is in brackets."""
        part = _object(given, where)
        self._parts += 1
        if self._parts > MAX_PARTS or depth > MAX_DEPTH:
            raise _wrong(
                where, "is too large", f"the limits: {MAX_PARTS} parts, {MAX_DEPTH} levels"
            )
        kind = part.get("type")
        deeper = depth + 1
        match kind:
            case "const_string":
                _only(part, where, "type", "value")
                return _literal(part.get("value"), f"{where}/value")
            case "json_schema":
                _only(part, where, "type", "json_schema")
                schema = part.get("json_schema")
                spec = GrammarSpec(kind="json_schema", text=json.dumps(schema, ensure_ascii=False))
                return self._span(spec, f"{where}/json_schema")
            case "regex":
                _only(part, where, "type", "pattern")
                text = _string(part.get("pattern"), f"{where}/pattern")
                return self._span(GrammarSpec(kind="regex", text=text), f"{where}/pattern")
            case "grammar":
                _only(part, where, "type", "grammar")
                text = _string(part.get("grammar"), f"{where}/grammar")
                return self._span(GrammarSpec(kind="ebnf", text=text), f"{where}/grammar")
            case "any_text":
                _only(part, where, "type")
                return self._terminal(ANY_TEXT)
            case "sequence":
                _only(part, where, "type", "elements")
                return " ".join(self._elements(part, where, deeper))
            case "or":
                _only(part, where, "type", "elements")
                return f"({' | '.join(self._elements(part, where, deeper))})"
            case "optional" | "star" | "plus":
                _only(part, where, "type", "content")
                sign = {"optional": "?", "star": "*", "plus": "+"}[kind]
                return f"({self._format(part.get('content'), f'{where}/content', deeper)}){sign}"
            case "tag":
                return self._tag(part, where, "", deeper)
            case "triggered_tags":
                return self._triggered(part, where, deeper)
            case "tags_with_separator":
                return self._separated(part, where, deeper)
        raise _wrong(f"{where}/type", f"is no known kind of part: {kind!r}")

    def _elements(self, part: dict[str, Any], where: str, depth: int) -> list[str]:
        elements = _list(part.get("elements"), f"{where}/elements")
        return [self._format(e, f"{where}/elements/{i}", depth) for i, e in enumerate(elements)]

    def _tag(self, given: Any, where: str, said: str, depth: int) -> str:
        """A tag whose beginning `said` has been written already."""
        tag = _object(given, where)
        _only(tag, where, "type", "begin", "content", "end")
        begin = _string(tag.get("begin"), f"{where}/begin")
        end = _string(tag.get("end", ""), f"{where}/end")
        content = _object(tag.get("content"), f"{where}/content")
        head = lark_string(begin[len(said) :]) if len(begin) > len(said) else ""
        if content.get("type") == "any_text" and end:
            # Free text reaches to the first end that it meets.
            _only(content, f"{where}/content", "type")
            return f"{head} {self._lazy(end)}"
        body = self._format(content, f"{where}/content", depth)
        return f"{head} {body} {lark_string(end) if end else ''}"

    def _triggered(self, part: dict[str, Any], where: str, depth: int = 0) -> str:
        _only(
            part, where, "type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"
        )
        if part.get("excludes"):
            raise _wrong(f"{where}/excludes", "is not supported")
        triggers = [
            _string(trigger, f"{where}/triggers/{i}")
            for i, trigger in enumerate(_list(part.get("triggers"), f"{where}/triggers"))
        ]
        at = f"{where}/tags" if where else "/structures"
        tags = _list(part.get("tags"), at)
        groups: dict[str, list[str]] = {}
        for i, given in enumerate(tags):
            begin = _string(_object(given, f"{at}/{i}").get("begin"), f"{at}/{i}/begin")
            fitting = [trigger for trigger in triggers if trigger and begin.startswith(trigger)]
            if len(fitting) != 1:
                problem = "begins with no trigger" if not fitting else "begins with two triggers"
                raise _wrong(f"{at}/{i}/begin", problem)
            groups.setdefault(fitting[0], []).append(
                self._tag(given, f"{at}/{i}", fitting[0], depth + 1)
            )
        idle = [trigger for trigger in triggers if trigger not in groups]
        if idle:
            raise _wrong(f"{where}/triggers", f"begins no tag: {idle[0]!r}")
        tag = " | ".join(
            f"{self._lazy(trigger)} ({' | '.join(bodies)})" for trigger, bodies in groups.items()
        )
        rest = self._terminal(ANY_TEXT)
        if _flag(part, "at_least_one", where):
            # The first one stands at the beginning: the text is required to be a call.
            first = " | ".join(
                f"{lark_string(trigger)} ({' | '.join(bodies)})"
                for trigger, bodies in groups.items()
            )
            if _flag(part, "stop_after_first", where):
                return f"({first})"
            return f"({first}) ({tag})* {rest}"
        if _flag(part, "stop_after_first", where):
            return f"(({tag}) | {rest})"
        return f"({tag})* {rest}"

    def _separated(self, part: dict[str, Any], where: str, depth: int) -> str:
        _only(part, where, "type", "tags", "separator", "at_least_one", "stop_after_first")
        separator = _string(part.get("separator", ""), f"{where}/separator")
        tags = [
            self._tag(tag, f"{where}/tags/{i}", "", depth)
            for i, tag in enumerate(_list(part.get("tags"), f"{where}/tags"))
        ]
        one = f"({' | '.join(tags)})"
        between = lark_string(separator) if separator else ""
        several = one if _flag(part, "stop_after_first", where) else f"{one} ({between} {one})*"
        return several if _flag(part, "at_least_one", where) else f"({several})?"

    def _span(self, spec: GrammarSpec, where: str) -> str:
        try:
            sources = self._inner(spec)
            source = next(sources)
            if self._last:
                for later in sources:
                    source = later
        except GrammarError as error:
            inner = (error.where or "").replace("#", "")
            if not inner.startswith("/"):
                inner = inner and f", {inner}"
            error.where = where + ("" if inner == "/" else inner)
            raise
        given = json.loads(source)
        self._dropped += [where + pointer for pointer in given.get("dropped", ())]
        name = f"{EBNF_SPAN if spec.kind == 'ebnf' else 'span_'}{len(self._grammars)}"
        self._grammars.append({**given["grammars"][0], "name": name})
        return f"@{name}"

    def _lazy(self, end: str) -> str:
        """A rule for text up to the first `end`, which belongs to it."""
        return self._rule(f"text_{len(self._rules)}[lazy]: {ANY_TEXT} {lark_string(end)}")

    def _terminal(self, pattern: str) -> str:
        return self._rule(f"TEXT_{len(self._rules)}: {pattern}")

    def _rule(self, line: str) -> str:
        self._rules.append(line)
        return line.partition(":")[0].partition("[")[0]


def _wrong(where: str, what: str, hint: str | None = None) -> GrammarError:
    return GrammarError(f"structural tag: {where or '/'} {what}", where=where or "/", hint=hint)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "must be an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _wrong(where, "must be a list of at least one")
    return value


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "must be a string")
    return value


def _literal(value: Any, where: str) -> str:
    text = _string(value, where)
    if not text:
        raise _wrong(where, "must not be empty")
    return lark_string(text)


def _flag(part: dict[str, Any], name: str, where: str) -> bool:
    value = part.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(f"{where}/{name}", "must be true or false")
    return value


def _only(part: dict[str, Any], where: str, *names: str) -> None:
    for name in part:
        if name not in names:
            raise _wrong(f"{where}/{name}", "is not supported")
