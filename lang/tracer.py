"""The life of one trace: how much it has recorded, and where and why it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

from stolon.lang.location import program_line
from stolon.lang.placeholders import Argument, Placeholder
from stolon.lang.plan import TraceEnd
from stolon.srt.client import EngineClient
from stolon.srt.protocol import MAX_SEGMENTS

MAX_RECORDED = MAX_SEGMENTS
"""Expressions, forks and reads of one trace. A body that loops for ever must come to an end."""


# Private use characters, which no text is likely to have.
_FIRST_SPELLED = 0xF0000
_MAX_SPELLED = 0xFFFD


class TraceStop(BaseException):
    """Unwinds a body whose trace has ended; no program catches it as an Exception."""


class Tracer:
    """One trace.

    Args:
        client: whose chat template and vocabulary the program is recorded for.
        strict: an argument that is asked for its text raises TypeError instead of ending the trace.

    Attributes:
        ended: where and why it ended before the program did.
        refusal: the TypeError of a strict trace.
    """

    def __init__(self, client: EngineClient, *, strict: bool) -> None:
        self.client = client
        self.strict = strict
        self.ended: TraceEnd | None = None
        self.refusal: TypeError | None = None
        self._recorded = 0
        self._spelled: dict[str, str] = {}

    # -- questions -------------------------------------------------------------------------------

    def ask(self, placeholder: Placeholder, what: str) -> NoReturn:
        """A placeholder was asked for its value, which ends the trace."""
        if isinstance(placeholder, Argument):
            self._end_at(placeholder, what, _give(placeholder))
        reason = f"the value {placeholder._label!r} {what}"
        self.end(reason, "what follows depends on what is generated")

    def _end_at(self, argument: Argument, what: str, hint: str) -> NoReturn:
        reason = f"the argument {argument._label!r} {what}, and is not known while tracing"
        if self.strict and self.ended is None:
            self.refusal = TypeError(f"{program_line()}: {reason}; {hint}")
        self.end(reason, hint)

    # -- text ------------------------------------------------------------------------------------

    def spell(self, placeholder: Placeholder) -> str:
        """A character that stands for a placeholder in a text, which `parts` finds again."""
        if self.strict and isinstance(placeholder, Argument):
            label = placeholder._label
            hint = f's += "... " + {label} shows where it stands; or {_give(placeholder)}'
            self._end_at(placeholder, "is put in an f-string or another text", hint)
        if len(self._spelled) == _MAX_SPELLED:
            self.end(f"more than {_MAX_SPELLED} values were made text")
        char = chr(_FIRST_SPELLED + len(self._spelled))
        self._spelled[char] = placeholder._label
        return char

    def represent(self, placeholder: Placeholder) -> str:
        """Its ``repr``, which is also what the text of a list or a dict has of it."""
        if self.strict:
            return f"<{type(placeholder).__name__.lower()} {placeholder._label}>"
        return self.spell(placeholder)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """A text cut at placeholders: their labels (True), and what stands between them (False)."""
        if text.isascii() or not self._spelled:
            yield text, False
            return
        for part in re.split(f"([{''.join(self._spelled)}])", text):
            if part:
                yield self._spelled.get(part, part), part in self._spelled

    def shown(self, text: str) -> str:
        """The text with placeholders in braces."""
        return "".join("{" + part + "}" if label else part for part, label in self.parts(text))

    # -- the end ---------------------------------------------------------------------------------

    def end(self, reason: str, hint: str | None = None) -> NoReturn:
        """End the trace here. Only the first end counts."""
        if self.ended is None:
            self.ended = TraceEnd(program_line(), reason, hint)
        self.check()
        raise TraceStop

    def check(self) -> None:
        """Raise again if the trace has ended, whatever the body did with the first exception."""
        if self.ended is not None:
            raise self.refusal or TraceStop

    def count(self) -> None:
        """Something is recorded."""
        self.check()
        self._recorded += 1
        if self._recorded > MAX_RECORDED:
            self.end(f"more than {MAX_RECORDED} expressions were recorded")


def _give(argument: Argument) -> str:
    name = re.split(r"\W", argument._label, maxsplit=1)[0]
    return f"give it a value: trace({name}=...) or bind({name}=...)"
