"""How families of models mark their reasoning, and cutting it from the answer while it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stolon.errors import InvalidRequest

Side = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class Family:
    """Markers of one family.

    Attributes:
        start, end: around the reasoning, which comes before the answer.
        begins_inside: the text begins in the reasoning even without `start`.
        direct: marker of an answer that no reasoning comes before, if there is one.
        special: the markers are special tokens, which a text leaves out unless it is asked to keep them.
    """

    start: str = "<think>"
    end: str = "</think>"
    begins_inside: bool = False
    direct: str = ""
    special: bool = False


_THINK = Family()
_FORCED = Family(begins_inside=True)

FAMILIES: dict[str, Family] = {
    "deepseek-r1": _FORCED,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "gpt-oss": Family(
        start="<|channel|>analysis<|message|>",
        end="<|end|><|start|>assistant<|channel|>final<|message|>",
        direct="<|channel|>final<|message|>",
        special=True,
    ),
    "kimi": Family(start="◁think▷", end="◁/think▷"),
    "kimi_k2": _THINK,
    "qwen3": _THINK,
    "qwen3-thinking": _FORCED,
}


def family_of(model_type: str) -> Family:
    """The family of that name, whatever its case. Raises InvalidRequest that lists them."""
    found = FAMILIES.get(model_type.lower()) if isinstance(model_type, str) else None
    if found is None:
        raise InvalidRequest(
            f"model_type must be one of {', '.join(FAMILIES)}, not {model_type!r}",
            param="model_type",
        )
    return found


class Splitter:
    """Cuts a text into reasoning and answer. The pieces that it is given may end anywhere.

    The blanks around the reasoning, and those between it and the answer, belong to neither. A text
    without reasoning stays as it is.
    """

    def __init__(self, family: Family, *, inside: bool) -> None:
        """`inside` says that the text begins in the reasoning."""
        self._family = family
        self._inside = inside
        self._stage: Literal["begin", "reasoning", "between", "answer"] = "begin"
        self._held = ""
        self._said = False  # something of the reasoning was handed out

    def feed(self, text: str, *, last: bool = False) -> tuple[str, str]:
        """What is new of (reasoning, answer). Text that may yet be a marker is held back until `last`."""
        self._held += text
        if self._stage == "begin":
            self._begin(last)
        reasoning = self._reasoning(last) if self._stage == "reasoning" else ""
        answer = self._answer() if self._stage in ("between", "answer") else ""
        return reasoning, answer

    @property
    def side(self) -> Side:
        """Where the text is now."""
        return "answer" if self._stage in ("between", "answer") else "reasoning"

    def _begin(self, last: bool) -> None:
        family = self._family
        text = self._held.lstrip()
        for marker, stage in ((family.start, "reasoning"), (family.direct, "answer")):
            if marker and text.startswith(marker):
                self._held = text[len(marker) :]
                self._stage = "reasoning" if stage == "reasoning" else "between"
                return
        undecided = family.start.startswith(text) or family.direct.startswith(text)
        if last or not undecided:
            self._stage = "reasoning" if self._inside else "answer"

    def _reasoning(self, last: bool) -> str:
        if not self._said:
            self._held = self._held.lstrip()
        text, found, rest = self._held.partition(self._family.end)
        if found:
            self._stage = "between"
            new, self._held = text.rstrip(), rest
        elif last:
            new, self._held = text.rstrip(), ""
        else:
            new = text[: len(text) - _overlap(text, self._family.end)].rstrip()
            self._held = text[len(new) :]
        self._said = self._said or bool(new)
        return new

    def _answer(self) -> str:
        if self._stage == "between":
            self._held = self._held.lstrip()
            if self._held:
                self._stage = "answer"
        new, self._held = self._held, ""
        return new


def split_reasoning(text: str, family: Family, *, inside: bool) -> tuple[str, str]:
    """(reasoning, answer) of a whole text."""
    return Splitter(family, inside=inside).feed(text, last=True)


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that is a beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
