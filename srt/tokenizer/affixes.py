"""The text that a chat template writes around a new message: rendered once, and kept for the next time."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from jinja2 import Environment
from jinja2.parser import Parser

from stolon.errors import TemplateError
from stolon.srt.tokenizer.reach import Reach, reach_of

History = Sequence[Mapping[str, Any]]
Render = Callable[..., str]

_MAX_KEPT = 1024
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_MARKUP = re.compile(r"[<>\[\]{}|]")

_NOT_APPEND_ONLY = "render the whole conversation again for every turn instead of appending to it"


class Affixes:
    """What stands around the messages of one template, by the course of roles before them.

    Args:
        source: the template.
        environment: that it was compiled in.
    """

    def __init__(self, source: str, environment: Environment) -> None:
        self._source = source
        self._environment = environment
        self._marks = _marks(source)
        self._kept: dict[tuple[Any, ...], tuple[str, str]] = {}

    def around(self, render: Render, history: History, role: str) -> tuple[str, str]:
        """See `ChatTemplate.role_affixes`; `render` is its method."""
        if self.reach is not None:
            short = self.reach.without_middle(history)
            if short is not history:
                # What it refuses may be in the seam.
                with suppress(TemplateError):
                    return self._around(render, short, role)
        return self._around(render, history, role)

    @cached_property
    def reach(self) -> Reach | None:
        """How far the template looks, None if that can be anywhere."""
        return reach_of(Parser(self._environment, self._source).parse())

    def _around(self, render: Render, history: History, role: str) -> tuple[str, str]:
        outline = self._outline(history, role)
        known = None if outline is None else self._kept.get(outline)
        if known is None:
            known = _rendered(render, history, role)
            if outline is not None:
                if len(self._kept) >= _MAX_KEPT:
                    self._kept.clear()
                self._kept[outline] = known
        return known

    def _outline(self, history: History, role: str) -> tuple[Any, ...] | None:
        """What the text around a message depends on, None where it may be the content of others.

        A template that looks into messages looks for markup that it spells itself.
        """
        if self._marks is None:
            return None
        outline: list[Any] = [role]
        for message in history:
            content = message.get("content")
            if len(message) != 2 or not isinstance(content, str):
                return None
            for mark in self._marks:
                if mark in content:
                    return None
            outline.append((message.get("role"), not content))
        return tuple(outline)


def _rendered(render: Render, history: History, role: str) -> tuple[str, str]:
    before = render(history) if history else ""
    sentinel = "x" + secrets.token_hex(16)
    after = render([*history, {"role": role, "content": sentinel}])
    if after.count(sentinel) != 1:
        times = after.count(sentinel)
        raise TemplateError(
            f"the chat template writes a {role} message {times} times here, not once",
            hint=f"it may merge {role} messages into others; put the text into the next message"
            if not times
            else _NOT_APPEND_ONLY,
        )
    prefix, suffix = after.split(sentinel)
    if not prefix.startswith(before):
        raise TemplateError(
            f"the chat template rewrites earlier messages when a {role} message follows",
            hint=_NOT_APPEND_ONLY,
        )
    if role == "assistant" and history:
        prompted = render(history, add_generation_prompt=True)
        if not prompted.startswith(before):
            raise TemplateError(
                "the chat template rewrites earlier messages when it asks for an answer",
                hint=_NOT_APPEND_ONLY,
            )
        # Where it has no generation prompt, what precedes the content serves.
        if prompted != before:
            prefix = prompted
    return prefix[len(before) :], suffix


def _marks(source: str) -> tuple[str, ...] | None:
    """The markup that a template spells; None for one that asks for the time."""
    if "strftime" in source:
        return None
    texts = {first or second for first, second in _QUOTED.findall(source)}
    # Newlines are spelled as escapes: what is between them is the markup.
    parts = {part for text in texts for part in re.split(r"\\[a-z]|\s", text)}
    return tuple(sorted(part for part in parts if _MARKUP.search(part)))
