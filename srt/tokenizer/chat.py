"""Chat templates (interface settled; body to be written)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


class ChatTemplate:
    """A model's own Jinja chat template, run in an immutable sandbox."""

    def __init__(self, source: str, *, special_tokens: Sequence[str], bos_token: str = "", eos_token: str = "") -> None: ...

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False, tools: Sequence[dict[str, Any]] | None = None) -> str: ...

    def render_parts(self, messages: Sequence[Message], *, add_generation_prompt: bool = False, tools: Sequence[dict[str, Any]] | None = None) -> list[tuple[str, bool]]: ...

    def role_affixes(self, history: Sequence[Message], role: str) -> tuple[str, str]: ...
