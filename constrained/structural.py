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
from stolon.constrained.spec import GrammarKind, GrammarSpec
from stolon.constrained.structural_part import Part
from stolon.errors import GrammarError

__all__ = ["structural_sources"]


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
        body = Part(root, "")
        if body.value("type", "structural_tag") != "structural_tag":
            raise body.wrong('must be "structural_tag"', "type")
        if "format" in body:
            body.only("type", "format")
            start = self._format(body.part("format"), 0)
        else:
            body.only("type", "structures", "triggers")
            start = self._older(body)
        lark = "\n".join([f"start: {start}", *self._rules]) + "\n"
        outer = {"name": "structural_tag", "lark_grammar": lark}
        dropped = {"dropped": self._dropped} if self._dropped else {}
        return json.dumps({"grammars": [outer, *self._grammars], **dropped})

    def _older(self, body: Part) -> str:
        tags = []
        for structure in body.parts("structures"):
            structure.only("begin", "schema", "end")
            schema = structure.value("schema")
            content = (
                {"type": "any_text"}
                if schema is None
                else {"type": "json_schema", "json_schema": schema}
            )
            tags.append(
                {
                    "begin": structure.value("begin"),
                    "content": content,
                    "end": structure.value("end", ""),
                }
            )
        triggered = {"triggers": body.value("triggers"), "structures": tags}
        return self._triggered(Part(triggered, ""), 0, tags="structures")

    def _format(self, part: Part, depth: int) -> str:
        """A Lark expression of one part; what repeats or chooses is in brackets."""
        self._parts += 1
        if self._parts > MAX_PARTS or depth > MAX_DEPTH:
            raise part.wrong(
                "is too large", hint=f"the limits: {MAX_PARTS} parts, {MAX_DEPTH} levels"
            )
        kind = part.value("type")
        deeper = depth + 1
        match kind:
            case "const_string":
                part.only("type", "value")
                text = part.string("value")
                if not text:
                    raise part.wrong("must not be empty", "value")
                return lark_string(text)
            case "json_schema":
                part.only("type", "json_schema")
                text = json.dumps(part.value("json_schema"), ensure_ascii=False)
                return self._span("json_schema", text, part.at("json_schema"))
            case "regex":
                part.only("type", "pattern")
                return self._span("regex", part.string("pattern"), part.at("pattern"))
            case "grammar":
                part.only("type", "grammar")
                return self._span("ebnf", part.string("grammar"), part.at("grammar"))
            case "any_text":
                part.only("type")
                return self._terminal(ANY_TEXT)
            case "sequence":
                part.only("type", "elements")
                return " ".join(self._elements(part, deeper))
            case "or":
                part.only("type", "elements")
                return f"({' | '.join(self._elements(part, deeper))})"
            case "optional" | "star" | "plus":
                part.only("type", "content")
                sign = {"optional": "?", "star": "*", "plus": "+"}[kind]
                return f"({self._format(part.part('content'), deeper)}){sign}"
            case "tag":
                return self._tag(part, "", deeper)
            case "triggered_tags":
                return self._triggered(part, deeper, tags="tags")
            case "tags_with_separator":
                return self._separated(part, deeper)
        raise part.wrong(f"is no known kind of part: {kind!r}", "type")

    def _elements(self, part: Part, depth: int) -> list[str]:
        return [self._format(element, depth) for element in part.parts("elements")]

    def _tag(self, tag: Part, said: str, depth: int) -> str:
        """A tag whose beginning `said` has been written already."""
        tag.only("type", "begin", "content", "end")
        begin = tag.string("begin")
        end = tag.string("end", "")
        content = tag.part("content")
        head = lark_string(begin[len(said) :]) if len(begin) > len(said) else ""
        if content.value("type") == "any_text" and end:
            # Free text reaches to the first end that it meets.
            content.only("type")
            return f"{head} {self._lazy(end)}"
        body = self._format(content, depth)
        return f"{head} {body} {lark_string(end) if end else ''}"

    def _triggered(self, part: Part, depth: int, *, tags: str) -> str:
        """Free text, and the tags (the member `tags`) that triggers begin in it."""
        part.only("type", "triggers", tags, "at_least_one", "stop_after_first", "excludes")
        if part.value("excludes"):
            raise part.wrong("is not supported", "excludes")
        triggers = part.strings("triggers")
        groups: dict[str, list[str]] = {}
        for tag in part.parts(tags):
            begin = tag.string("begin")
            fitting = [trigger for trigger in triggers if trigger and begin.startswith(trigger)]
            if len(fitting) != 1:
                problem = "begins with no trigger" if not fitting else "begins with two triggers"
                raise tag.wrong(problem, "begin")
            groups.setdefault(fitting[0], []).append(self._tag(tag, fitting[0], depth + 1))
        idle = [trigger for trigger in triggers if trigger not in groups]
        if idle:
            raise part.wrong(f"begins no tag: {idle[0]!r}", "triggers")
        later = " | ".join(
            f"{self._lazy(trigger)} ({' | '.join(bodies)})" for trigger, bodies in groups.items()
        )
        rest = self._terminal(ANY_TEXT)
        if part.flag("at_least_one"):
            # The first one stands at the beginning: the text is required to be a call.
            first = " | ".join(
                f"{lark_string(trigger)} ({' | '.join(bodies)})"
                for trigger, bodies in groups.items()
            )
            if part.flag("stop_after_first"):
                return f"({first})"
            return f"({first}) ({later})* {rest}"
        if part.flag("stop_after_first"):
            return f"(({later}) | {rest})"
        return f"({later})* {rest}"

    def _separated(self, part: Part, depth: int) -> str:
        part.only("type", "tags", "separator", "at_least_one", "stop_after_first")
        separator = part.string("separator", "")
        one = f"({' | '.join([self._tag(tag, '', depth) for tag in part.parts('tags')])})"
        between = lark_string(separator) if separator else ""
        several = one if part.flag("stop_after_first") else f"{one} ({between} {one})*"
        return several if part.flag("at_least_one") else f"({several})?"

    def _span(self, kind: GrammarKind, text: str, where: str) -> str:
        try:
            sources = self._inner(GrammarSpec(kind=kind, text=text))
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
        name = f"span_{len(self._grammars)}"
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
