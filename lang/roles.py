"""Chat messages of a branch: which role is open, and what the model's template puts around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol, overload

from stolon.errors import InvalidRequest
from stolon.lang.calls import Item, Known, calls_of, item_text, known_text
from stolon.lang.chat_template import matched_template
from stolon.lang.ir import Expr, Role, RoleBegin, RoleEnd, TextExpr
from stolon.srt.client import EngineClient
from stolon.srt.tokenizer import ChatTemplate


class RoleTemplate(Protocol):
    """What writes the text around messages: a model's own template, or a `chat_template.ChatTemplate`."""

    def role_affixes(self, history: Sequence[dict[str, Any]], role: str) -> tuple[str, str]: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """A complete message: its role and the items inside."""

    role: Role
    items: tuple[Item, ...]
    _memo: list[str] = field(default_factory=list, compare=False, repr=False)

    def content(self) -> str:
        """Text of the message, no blanks at its start. Every call inside must be settled."""
        return "".join(map(item_text, said(self.items))).lstrip()

    def known(self) -> str:
        """`content` with a placeholder for what is still being generated, or has failed."""
        if self._memo:
            return self._memo[0]
        text = known_text(said(self.items)).lstrip()
        if all(call.settled.done() and call.error is None for call in calls_of(self.items)):
            self._memo.append(text)
        return text


@dataclass(frozen=True, slots=True)
class OpenRole:
    """A message that has begun: where in the branch's items, and how it will end."""

    role: Role
    start: int
    suffix: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a branch so far. Immutable, so that forks share it."""

    template: RoleTemplate | None
    turns: tuple[Turn, ...] = ()
    open: OpenRole | None = None

    @classmethod
    def of(cls, client: EngineClient, given: RoleTemplate | None) -> Conversation:
        """An empty one in the template that the run was given, else one that a registered function
        matches with the model, else the model's own.

        A client that sends messages instead of text has ``sends_messages``, and a template that can't
        be replaced.
        """
        if not getattr(client, "sends_messages", False):
            return cls(given or matched_template(client.info.name) or client.chat_template)
        if given is not None:
            raise InvalidRequest(
                f"the server of {client.info.name} writes messages in its own chat template",
                param="chat_template",
                hint="leave chat_template out",
            )
        return cls(client.chat_template)

    def default_system(self, role: Role) -> list[Expr]:
        """The system message to put first when a conversation begins with another role."""
        text = getattr(self.template, "default_system_prompt", None)
        if not text or role == "system" or self.turns or self.open is not None:
            return []
        return [RoleBegin("system"), TextExpr(text), RoleEnd("system")]

    def stop(self) -> tuple[str, ...]:
        """Strings that end every generation."""
        return tuple(getattr(self.template, "stop_str", ()))

    def begin(self, role: Role, items: Sequence[Item]) -> tuple[Conversation, str]:
        """Open a message after `items`: the new conversation, and the text before the message.

        Without a template, or after text that belongs to no message, roles are spelled in plain
        words ("User: "): a chat template describes a conversation from its beginning.

        Text that is still being generated is unknown to the template. What a template writes
        around a message does not depend on the text of the messages before it, so a placeholder
        stands for it.
        """
        if self.open is not None:
            raise InvalidRequest(
                f"role {role!r} begins inside role {self.open.role!r}; roles do not nest",
                hint=f"end it with {self.open.role}_end()",
            )
        template = self.template
        bare = not self.turns and any(
            not isinstance(item, Known) or item.text.strip() for item in items
        )
        if template is None or bare:
            template = _plain()
        prefix, suffix = template.role_affixes(_Told(self.turns), role)
        start = len(items) + (1 if prefix else 0)  # the caller appends the prefix as one item
        return replace(self, template=template, open=OpenRole(role, start, suffix)), prefix

    def end(self, role: Role, items: Sequence[Item]) -> tuple[Conversation, str]:
        """Close the open message: the new conversation and the text that goes after the message."""
        if self.open is None or self.open.role != role:
            inside = "outside any role" if self.open is None else f"inside role {self.open.role!r}"
            raise InvalidRequest(f"{role}_end() {inside}", hint=f"begin it with {role}_begin()")
        turn = Turn(role, tuple(items[self.open.start :]))
        return replace(self, turns=(*self.turns, turn), open=None), self.open.suffix

    def with_turns(self, turns: list[Turn]) -> Conversation:
        """The conversation with further complete messages."""
        return replace(self, turns=(*self.turns, *turns)) if turns else self


class _Told(Sequence[dict[str, Any]]):
    """Messages as a template takes them, made as far as it looks at them."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [_told(turn) for turn in self._turns[index]]
        return _told(self._turns[index])


def _told(turn: Turn) -> dict[str, Any]:
    return {"role": turn.role, "content": turn.known()}


def said(items: Sequence[Item]) -> list[Item]:
    """The items of a message that are its content, without markers that belong to the model's format."""
    return [item for item in items if not (isinstance(item, Known) and item.special)]


@cache
def _plain() -> ChatTemplate:
    return ChatTemplate.plain()
