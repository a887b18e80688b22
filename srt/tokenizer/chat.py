"""Chat templates, rendered so that content can never spell a special token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stolon.errors import TemplateError
from stolon.srt.tokenizer.affixes import Affixes
from stolon.srt.tokenizer.guard import ContentGuard
from stolon.srt.tokenizer.sandbox import (
    BUDGET,
    Budget,
    BudgetExceeded,
    JinjaError,
    RaisedByTemplate,
    Sandbox,
)

Message = dict[str, Any]

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

# An answer begins with the blank after "Assistant:"; it is the model that writes it, so that blank
# and first word stay one token.
_PLAIN = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{ 'Assistant:' + message['content'] + '\\n\\n' }}
{%- else -%}
{{ message['role'] | capitalize + ': ' + message['content'] + '\\n\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""


class TemplateSource(msgspec.Struct, frozen=True, kw_only=True):
    """A chat template as plain data: the arguments of ChatTemplate."""

    source: str
    special_tokens: tuple[str, ...]
    bos_token: str = ""
    eos_token: str = ""

    def compile(self) -> ChatTemplate:
        """Raises TemplateError as ChatTemplate does."""
        return ChatTemplate(
            self.source,
            special_tokens=self.special_tokens,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
        )


class ChatTemplate:
    """A model's own Jinja chat template, run in an immutable sandbox (sandbox.py says what is
    bounded).

    Attributes:
        source: the template.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Sequence[str],
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        """Compile. `special_tokens` are the spellings that content must not introduce.

        Raises TemplateError, with the line in `where`, if the template can't be parsed.
        """
        self.source = source
        self._guarded = tuple(special_tokens)
        self._variables = {"bos_token": bos_token, "eos_token": eos_token}
        sandbox = Sandbox()
        self._affixes = Affixes(source, sandbox)
        try:
            self._template = sandbox.template_class.from_code(
                sandbox, sandbox.compile(source), sandbox.make_globals(None)
            )
        except JinjaError as error:
            line = getattr(error, "lineno", None)
            raise TemplateError(
                f"the chat template can't be parsed: {error}", where=_where(line)
            ) from error
        except (RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
            raise TemplateError(f"the chat template can't be compiled: {error}") from error

    def describe(self) -> TemplateSource:
        """What it takes to compile the same template elsewhere."""
        return TemplateSource(source=self.source, special_tokens=self._guarded, **self._variables)

    @classmethod
    def chatml(cls) -> ChatTemplate:
        """``<|im_start|>role\\ncontent<|im_end|>\\n``, without a default system prompt."""
        return cls(_CHATML, special_tokens=("<|im_start|>", "<|im_end|>"), eos_token="<|im_end|>")

    @classmethod
    def plain(cls) -> ChatTemplate:
        """``User: …\\n\\nAssistant:…`` for models without a template. It uses no special tokens.

        An assistant message is put right after the colon: generated text brings its own blank.
        """
        return cls(_PLAIN, special_tokens=())

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one text. `variables` are further names that the template may read.

        Raises TemplateError if the template raises or exceeds its budget.
        """
        names = dict(variables or {}) | self._variables
        names |= {
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            BUDGET: (budget := Budget(_text_length([messages, tools, variables]))),
        }
        chunks = []
        try:
            for chunk in self._template.generate(names):
                budget.output(len(chunk))
                chunks.append(chunk)
        except RaisedByTemplate as error:
            raise TemplateError(
                f"the chat template refuses these messages: {error}", where=_error_line(error)
            ) from error
        except BudgetExceeded as error:
            raise TemplateError(
                f"the chat template was stopped: {error}", where=_error_line(error)
            ) from error
        except Exception as error:  # the template's own faults are as various as Python's
            raise TemplateError(
                f"the chat template failed: {type(error).__name__}: {error}",
                where=_error_line(error),
                hint="the messages may lack a field that the template needs",
            ) from error
        return "".join(chunks)

    def render_parts(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[tuple[str, bool]]:
        """The conversation as (text, special) pieces for `Tokenizer.encode_parts`.

        Joined, the pieces are what `render` gives. Spellings of special tokens that come from
        messages or tools are pieces of their own with special=False; all else is special=True.
        """
        guard = ContentGuard(self._guarded)
        text = self.render(
            guard.hide_messages(messages),
            add_generation_prompt=add_generation_prompt,
            tools=None if tools is None else guard.hide(list(tools)),
            variables=None if variables is None else guard.hide(dict(variables)),
        )
        return guard.reveal(text)

    def role_affixes(self, history: Sequence[Message], role: str) -> tuple[str, str]:
        """(prefix, suffix): the literal text around a new message of `role` after `history`.

        For a template that only appends, prefix + content + suffix of each message in turn add up
        to what `render` gives for all of them. For the assistant the prefix is the generation
        prompt. A system prompt that the template puts in by itself is part of the first prefix.

        Raises TemplateError if the template does not only append, or has no place for such a
        message.
        """
        return self._affixes.around(self.render, history, role)


def _text_length(value: Any) -> int:
    return sum(len(text) for text in _strings(value))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _where(line: int | None) -> str | None:
    return None if line is None else f"chat template line {line}"


def _error_line(error: BaseException) -> str | None:
    """The template line that the innermost template frame of the traceback stands on."""
    line = None
    frame = error.__traceback__
    while frame is not None:
        if "__jinja_exception__" in frame.tb_frame.f_globals:
            line = frame.tb_lineno
        frame = frame.tb_next
    return _where(line)
