"""Chat templates as tables of what stands around each role, and the registry of them.

A model's own template is the default of every program. These are for models that have none, for programs that
were written for them, and for whoever wants to say exactly what stands around a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

from stolon.errors import InvalidRequest
from stolon.lang.location import located


class ChatTemplateStyle(Enum):
    """How a system message is written: as a message, or inside the first user message."""

    PLAIN = 1
    LLAMA2 = 2


@dataclass(frozen=True)
class ChatTemplate:
    """What is written before and after a message of each role.

    Attributes:
        name: in the registry.
        default_system_prompt: a system message that begins every conversation which has no other; None for
            none.
        role_prefix_and_suffix: role to (text before the content, text after it), which may spell special
            tokens.
        stop_str: strings that end every generation of a program that uses the template.
        image_token, audio_token: for programs that name them; only text is supported.
    """

    name: str
    default_system_prompt: str | None
    role_prefix_and_suffix: Mapping[str, tuple[str, str]]
    stop_str: Sequence[str] = ()
    image_token: str = "<image>"
    audio_token: str = "<audio>"
    style: ChatTemplateStyle = field(default=ChatTemplateStyle.PLAIN)

    def __post_init__(self) -> None:
        with located:
            _check(self)
        table = {role: (pair[0], pair[1]) for role, pair in self.role_prefix_and_suffix.items()}
        stops = (self.stop_str,) if isinstance(self.stop_str, str) else tuple(self.stop_str)
        object.__setattr__(self, "role_prefix_and_suffix", MappingProxyType(table))
        object.__setattr__(self, "stop_str", stops)

    def get_prefix_and_suffix(
        self, role: str, hist_messages: Sequence[Mapping[str, Any]]
    ) -> tuple[str, str]:
        """Text before and after a message of `role` that follows `hist_messages`."""
        prefix, suffix = self.role_prefix_and_suffix.get(role, ("", ""))
        if self.style is ChatTemplateStyle.LLAMA2:
            # The system message opens the first user message, which then needs no beginning of its own.
            if role == "system" and not hist_messages:
                return self.role_prefix_and_suffix.get("user", ("", ""))[0] + prefix, suffix
            said = (m["role"] for m in hist_messages if m["content"] is not None)
            if role == "user" and [*islice(said, 2)] == ["system"]:
                return "", suffix
        return prefix, suffix

    def role_affixes(self, history: Sequence[Mapping[str, Any]], role: str) -> tuple[str, str]:
        """`get_prefix_and_suffix`, as a model's own template has it."""
        return self.get_prefix_and_suffix(role, history)

    def get_prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as one text. A system message with the content None is the default one."""
        prompt = ""
        for index, message in enumerate(messages):
            role, content = message["role"], message["content"]
            if content is None and role == "system":
                content = self.default_system_prompt
                if content is None:
                    continue
            prefix, suffix = self.get_prefix_and_suffix(role, messages[:index])
            prompt += f"{prefix}{content}{suffix}"
        return prompt


Match = Callable[[str], "ChatTemplate | str | None"]
M = TypeVar("M", bound=Match)

_lock = threading.Lock()
_templates: dict[str, ChatTemplate] = {}
_matches: list[Match] = []


def register_chat_template(template: ChatTemplate) -> None:
    """Make a template known by its name. One of that name that is there already is replaced."""
    if not isinstance(template, ChatTemplate):
        raise InvalidRequest(f"a ChatTemplate is registered, not {template!r}", param="template")
    with _lock:
        _templates[template.name] = template


def register_chat_template_matching_function(func: M) -> M:
    """Register a function from the path of a model to its template (or its name), None for others.

    Also a decorator. The functions registered last are asked first, all of them before the table of known
    models. A template that such a function gives for the model of a backend is used there in place of the
    model's own.
    """
    if not callable(func):
        raise InvalidRequest(f"a function of the model's path is registered, not {func!r}")
    with _lock:
        _matches.insert(0, func)
    return func


def get_chat_template(name: str) -> ChatTemplate:
    """The template of that name. Raises InvalidRequest that lists the names."""
    from stolon.lang.known_templates import KNOWN, MEDIA

    with _lock:
        template = _templates.get(name) or KNOWN.get(name)
        names = sorted({*KNOWN, *_templates})
    if template is not None:
        return template
    if name in MEDIA:
        raise InvalidRequest(
            f"the chat template {name!r} is for models that see images; only text is supported"
        )
    raise InvalidRequest(
        f"no chat template {name!r}; there are {', '.join(names)}",
        hint="register_chat_template() adds one; without one a program uses the model's own",
    )


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """The template for a model, by what its path or name contains; "default" for what is not known."""
    from stolon.lang.known_templates import known_for

    return matched_template(model_path) or get_chat_template(known_for(model_path) or "default")


def matched_template(model_path: str) -> ChatTemplate | None:
    """What a registered matching function gives for a model, if one does."""
    with _lock:
        matches = tuple(_matches)
    for match in matches:
        found = match(model_path)
        if found is not None:
            return found if isinstance(found, ChatTemplate) else get_chat_template(found)
    return None


def _check(template: Any) -> None:
    for name in ("name", "image_token", "audio_token"):
        if not isinstance(getattr(template, name), str):
            _refuse(name, "a string", getattr(template, name))
    if not isinstance(template.default_system_prompt, str | None):
        _refuse("default_system_prompt", "a string or None", template.default_system_prompt)
    stops = template.stop_str
    if not isinstance(stops, str | list | tuple) or not all(
        isinstance(s, str) and s for s in stops
    ):
        _refuse("stop_str", "a list of strings", stops)
    if not isinstance(template.style, ChatTemplateStyle):
        _refuse("style", "a ChatTemplateStyle", template.style)
    table = template.role_prefix_and_suffix
    if not isinstance(table, Mapping):
        _refuse("role_prefix_and_suffix", "a dict of role to (prefix, suffix)", table)
    for role, affixes in table.items():
        pair = isinstance(affixes, tuple | list) and len(affixes) == 2
        if not pair or not all(isinstance(text, str) for text in affixes):
            _refuse(f"role_prefix_and_suffix[{role!r}]", "a pair of strings", affixes)


def _refuse(name: str, wanted: str, value: object) -> None:
    raise InvalidRequest(f"{name} must be {wanted}, not {value!r}", param=name)
