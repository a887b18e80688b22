"""Request bodies of the native routes: SGLang's names and defaults, unknown fields refused."""

from __future__ import annotations

from typing import Any

import msgspec

from stolon.constrained import GrammarSpec
from stolon.errors import InvalidRequest
from stolon.srt.protocol import MAX_SAMPLES, JumpForward, Sampling, Speculation
from stolon.srt.server.constraints import only, schema_spec, starting_after, structural_spec
from stolon.srt.server.errors import renamed
from stolon.srt.server.openai_schemas import bias_of, seed_of, strings

DEFAULT_MAX_NEW_TOKENS = 128
_NAMES = {name: f"sampling_params.{name}" for name in Sampling.__struct_fields__} | {
    "max_tokens": "sampling_params.max_new_tokens",
    "min_tokens": "sampling_params.min_new_tokens",
    "seed": "sampling_params.sampling_seed",
    "include_stop": "sampling_params.no_stop_trim",
    "after": "sampling_params.after",
}
"""Where the engine's sampling parameters are in the body."""


class NativeSampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``sampling_params``, with SGLang's names and defaults."""

    max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # our decoding never adds or drops a blank
    no_stop_trim: bool | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    structural_tag: Any = None
    after: str | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    jump_forward: JumpForward | None = None
    speculation: Speculation | None = None
    close_at_budget: bool | None = None

    def samples(self) -> int:
        n = 1 if self.n is None else self.n
        if not 1 <= n <= MAX_SAMPLES:
            raise InvalidRequest(
                f"n must be between 1 and {MAX_SAMPLES}", param="sampling_params.n"
            )
        return n

    def sampling(self, vocab_size: int) -> Sampling:
        """The same in the engine's terms, validated."""
        given = {
            "min_tokens": self.min_new_tokens,
            "temperature": self.temperature,
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "ignore_eos": self.ignore_eos,
            "include_stop": self.no_stop_trim,
            "skip_special_tokens": self.skip_special_tokens,
            "jump_forward": self.jump_forward,
            "speculation": self.speculation,
            "close_at_budget": self.close_at_budget,
        }
        arguments: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        try:
            sampling = Sampling(
                max_tokens=self.max_new_tokens,
                logit_bias=bias_of(self.logit_bias),
                stop=strings(self.stop),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                stop_regex=strings(self.stop_regex),
                seed=seed_of(self.sampling_seed),
                **arguments,
            )
            sampling.validate(vocab_size)
        except InvalidRequest as error:
            raise renamed(error, _NAMES) from None
        return sampling

    def names(self) -> dict[str, str]:
        """Fields that the engine names otherwise; see `renamed`."""
        return _NAMES | {"grammar": next(iter(self.constraints()), "sampling_params")}

    def grammar(self) -> GrammarSpec | None:
        return starting_after(only(self.constraints()), self.after, "sampling_params.after")

    def constraints(self) -> dict[str, GrammarSpec]:
        """What constrains the output, by the places of the fields."""
        at = "sampling_params"
        found: dict[str, GrammarSpec] = {}
        if self.json_schema is not None:
            found[f"{at}.json_schema"] = schema_spec(self.json_schema, f"{at}.json_schema")
        if self.regex is not None:
            found[f"{at}.regex"] = GrammarSpec(kind="regex", text=self.regex)
        if self.ebnf is not None:
            found[f"{at}.ebnf"] = GrammarSpec(kind="ebnf", text=self.ebnf)
        if self.lark is not None:
            found[f"{at}.lark"] = GrammarSpec(kind="lark", text=self.lark)
        if self.structural_tag is not None:
            found[f"{at}.structural_tag"] = structural_spec(
                self.structural_tag, f"{at}.structural_tag"
            )
        return found


class GenerateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /generate. Exactly one of `text` and `input_ids`."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: NativeSampling | None = None
    rid: str | list[str] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None

    def names(self) -> dict[str, str]:
        """Fields that the engine names otherwise; see `renamed`."""
        return (self.sampling_params or NativeSampling()).names() | {
            "prompt": "input_ids" if self.text is None else "text",
            "prompt_logprobs": "logprob_start_len",
        }
