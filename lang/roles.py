"""Chat messages of a branch: which role is open, and what the model's template puts around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from stolon.errors import InvalidRequest
from stolon.lang.calls import Item, Known, item_text, known_text
from stolon.lang.ir import Role
from stolon.srt.tokenizer import ChatTemplate, Message


@dataclass(frozen=True, slots=True)
class Turn:
    """A complete message: its role and the items inside."""

    role: Role
    items: tuple[Item, ...]

    def content(self) -> str:
        """Text of the message, no blanks at its start. Every call inside must be settled."""
        return "".join(map(item_text, self.items)).lstrip()


@dataclass(frozen=True, slots=True)
class OpenRole:
    """A message that has begun: where in the branch's items, and how it will end."""

    role: Role
    start: int
    suffix: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a branch so far. Immutable, so that forks share it."""

    template: ChatTemplate | None
    turns: tuple[Turn, ...] = ()
    open: OpenRole | None = None

    def begin(self, role: Role, items: list[Item]) -> tuple[Conversation, str]:
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
        history: list[Message] = [
            {"role": turn.role, "content": known_text(turn.items).lstrip()} for turn in self.turns
        ]
        prefix, suffix = template.role_affixes(history, role)
        start = len(items) + (1 if prefix else 0)  # the caller appends the prefix as one item
        return replace(self, template=template, open=OpenRole(role, start, suffix)), prefix

    def end(self, role: Role, items: list[Item]) -> tuple[Conversation, str]:
        """Close the open message: the new conversation and the text that goes after the message."""
        if self.open is None or self.open.role != role:
            inside = "outside any role" if self.open is None else f"inside role {self.open.role!r}"
            raise InvalidRequest(f"{role}_end() {inside}", hint=f"begin it with {role}_begin()")
        turn = Turn(role, tuple(items[self.open.start :]))
        return replace(self, turns=(*self.turns, turn), open=None), self.open.suffix

    def with_turns(self, turns: list[Turn]) -> Conversation:
        """The conversation with further complete messages."""
        return replace(self, turns=(*self.turns, *turns)) if turns else self


@cache
def _plain() -> ChatTemplate:
    return ChatTemplate.plain()
