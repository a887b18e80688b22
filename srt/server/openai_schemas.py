"""Request bodies of the OpenAI routes.

Every optional field also takes null. Unknown fields are ignored, as OpenAI's clients expect; fields
that are known to change the output but are not implemented are declared here and refused by name,
so that nothing is ignored in silence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stolon.errors import InvalidRequest
from stolon.srt.protocol import MAX_SAMPLES, JumpForward, Sampling, Speculation
from stolon.srt.server.constraints import ConstraintFields

MAX_SALT_CHARS = 256


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class OpenAIBody(ConstraintFields, kw_only=True):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    jump_forward: JumpForward | None = None
    speculation: Speculation | None = None
    close_at_budget: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None

    # Refused when set.
    allowed_token_ids: Any = None
    bad_words: Any = None
    guided_whitespace_pattern: Any = None
    logits_processors: Any = None
    prompt_logprobs: Any = None
    return_tokens_as_token_ids: Any = None
    choices: Any = None
    include_stop: Any = None
    input_ids: Any = None
    logprob_mode: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def names(self) -> dict[str, str]:
        """Fields that the engine names otherwise; see `renamed`."""
        return {"grammar": next(iter(self.constraints()), "response_format")}

    def samples(self) -> int:
        """n, 1 by default, range-checked."""
        n = 1 if self.n is None else self.n
        if not 1 <= n <= MAX_SAMPLES:
            raise InvalidRequest(f"n must be between 1 and {MAX_SAMPLES}", param="n")
        return n

    def salt(self) -> str:
        salt = self.cache_salt or ""
        if len(salt) > MAX_SALT_CHARS:
            raise InvalidRequest(
                f"cache_salt has at most {MAX_SALT_CHARS} characters", param="cache_salt"
            )
        return salt

    def order(self) -> int:
        """The priority, range-checked."""
        priority = self.priority or 0
        if abs(priority) >= 2**31:
            raise InvalidRequest("priority is out of range", param="priority")
        return priority

    def sampling(self, max_tokens: int | None, vocab_size: int) -> Sampling:
        """The validated sampling parameters.

        `max_tokens` is the route's reading of its length fields.
        """
        sampling = Sampling(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            temperature=_default(self.temperature, 1.0),
            top_k=0 if self.top_k is None or self.top_k == -1 else self.top_k,
            top_p=_default(self.top_p, 1.0),
            min_p=_default(self.min_p, 0.0),
            presence_penalty=_default(self.presence_penalty, 0.0),
            frequency_penalty=_default(self.frequency_penalty, 0.0),
            repetition_penalty=_default(self.repetition_penalty, 1.0),
            logit_bias=bias_of(self.logit_bias),
            stop=strings(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop_regex=strings(self.stop_regex),
            ignore_eos=bool(self.ignore_eos),
            include_stop=bool(self.include_stop_str_in_output),
            seed=seed_of(self.seed),
            skip_special_tokens=self.skip_special_tokens is not False,
            jump_forward=self.jump_forward or "inject",
            speculation=self.speculation or "auto",
            close_at_budget=bool(self.close_at_budget),
        )
        sampling.validate(vocab_size)
        return sampling


class TextPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: str | None = None


class ChatBody(OpenAIBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None

    # Refused when set.
    functions: Any = None
    audio: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    continue_final_message: Any = None
    echo: Any = None
    documents: Any = None
    thinking_token_budget: Any = None

    def names(self) -> dict[str, str]:
        names = OpenAIBody.names(self) | {"prompt": "messages"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names


class CompletionBody(OpenAIBody, kw_only=True):
    """POST /v1/completions. `prompt` is text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None

    # Refused when set.
    suffix: Any = None
    prompt_embeds: Any = None


_REFUSED = (
    "allowed_token_ids",
    "bad_words",
    "guided_whitespace_pattern",
    "logits_processors",
    "prompt_logprobs",
    "return_tokens_as_token_ids",
    "choices",
    "include_stop",
    "input_ids",
    "logprob_mode",
    "truncate_prompt_tokens",
    "use_beam_search",
    "functions",
    "audio",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "echo",
    "documents",
    "thinking_token_budget",
    "suffix",
    "prompt_embeds",
)


def refuse_unsupported(body: OpenAIBody) -> None:
    """Raise InvalidRequest naming a field that would change the output and is not implemented."""
    for name in _REFUSED:
        if isinstance(body, CompletionBody) and name == "echo":
            continue
        if getattr(body, name, None):
            raise InvalidRequest(f"{name} is not supported yet", param=name)


def strings(value: str | list[str] | None) -> tuple[str, ...]:
    """A field that is one string or a list of them."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def seed_of(seed: int | None) -> int | None:
    """Clients send signed 64-bit seeds; ours are the lower 63 bits."""
    if seed is None:
        return None
    if not -(2**63) <= seed < 2**63:
        raise InvalidRequest("seed must be a 64-bit integer", param="seed")
    return seed & (2**63 - 1)


def bias_of(bias: dict[str, float] | None) -> dict[int, float]:
    """logit_bias with its keys as token ids."""
    try:
        return {_token_id(key): value for key, value in (bias or {}).items()}
    except ValueError:
        raise InvalidRequest(
            "logit_bias keys must be token ids written as decimal strings", param="logit_bias"
        ) from None


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise ValueError(key)
    return int(key)


def _default(value: float | None, default: float) -> float:
    return default if value is None else value
