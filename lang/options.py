"""The one parameter object of sampling: what a run sets, and what a generation overrides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from stolon.errors import InvalidRequest
from stolon.lang.option_checks import (
    checked_bias,
    checked_flag,
    checked_template,
    require,
    sequence_of,
    wrong_type,
)
from stolon.srt.client import EngineClient
from stolon.srt.protocol import (
    MAX_SAMPLES,
    MAX_TOP_LOGPROBS,
    JumpForward,
    LogprobSpec,
    PromptLogprobs,
    Sampling,
    Speculation,
)

_INTEGERS = (
    "max_tokens",
    "min_tokens",
    "n",
    "top_k",
    "seed",
    "top_logprobs_num",
    "logprob_start_len",
)
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_WORDS = {"jump_forward": get_args(JumpForward), "speculation": get_args(Speculation)}
_FLAGS = (
    "ignore_eos",
    "return_logprob",
    "return_text_in_logprobs",
    "skip_special_tokens",
    "close_at_budget",
)
_SAMPLING_FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "stop_regex",
    "ignore_eos",
    "skip_special_tokens",
    "jump_forward",
    "speculation",
    "close_at_budget",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Sampling arguments as a program gives them; None means not given. See `protocol.Sampling`.

    Attributes:
        n: samples of one generation; more than one makes its variable a list.
        return_logprob: report the log-prob of every generated token.
        top_logprobs_num: also report this many alternatives per token.
        logprob_start_len: also report the log-probs of the text before the generation, from this token on;
            -1 reports none.
        return_text_in_logprobs: False leaves the text of each token out of what is reported.
        skip_special_tokens: False keeps special tokens in the text.
        chat_template: of a run: what stands around its messages, in place of the model's own template.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    logprob_start_len: int | None = None
    return_text_in_logprobs: bool | None = None
    skip_special_tokens: bool | None = None
    chat_template: Any = None
    jump_forward: JumpForward | None = None
    speculation: Speculation | None = None
    close_at_budget: bool | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SamplingOptions:
        """Check types, and bring the shorthand forms into shape: one stop string, ``top_k=-1``."""
        values = {name: value for name, value in given.items() if value is not None}
        for name in _INTEGERS:
            if name in values:
                require(name, values[name], int, "an integer")
        for name in _NUMBERS:
            if name in values:
                require(name, values[name], (int, float), "a number")
                values[name] = float(values[name])
        for name in _FLAGS:
            if name in values:
                checked_flag(name, values[name])
        for name, words in _WORDS.items():
            if name in values and values[name] not in words:
                wrong_type(name, values[name], f"one of {', '.join(words)}")
        for name in ("stop", "stop_regex"):
            if name in values:
                values[name] = sequence_of(name, values[name], str, "a string or a list of strings")
        if "stop_token_ids" in values:
            values["stop_token_ids"] = sequence_of(
                "stop_token_ids", values["stop_token_ids"], int, "a token id or a list of them"
            )
        if "logit_bias" in values:
            values["logit_bias"] = checked_bias(values["logit_bias"])
        if "chat_template" in values:
            values["chat_template"] = checked_template(values["chat_template"])
        if values.get("top_k") == -1:
            values["top_k"] = 0
        if not 1 <= values.get("n", 1) <= MAX_SAMPLES:
            raise InvalidRequest(f"n must be between 1 and {MAX_SAMPLES}", param="n")
        if not 0 <= values.get("top_logprobs_num", 0) <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs_num must be between 0 and {MAX_TOP_LOGPROBS}",
                param="top_logprobs_num",
            )
        if not -1 <= values.get("logprob_start_len", -1) < 2**31:
            raise InvalidRequest(
                "logprob_start_len must be a position in the tokens, or -1 for none",
                param="logprob_start_len",
            )
        for name, none in (("top_logprobs_num", 0), ("logprob_start_len", -1)):
            if values.get("return_logprob") is False and values.get(name, none) != none:
                raise InvalidRequest(f"{name} contradicts return_logprob=False", param=name)
        return cls(**values)

    @classmethod
    def take(cls, arguments: dict[str, Any], parameters: Collection[str]) -> SamplingOptions:
        """Remove the sampling arguments from a call's keyword arguments.

        A name that the program declares as its own parameter is the program's. ``max_new_tokens``
        is another name of ``max_tokens``. ``use_thread`` may be given and changes nothing: no state has a
        thread of its own, and what a program does can't depend on it.
        """
        if "use_thread" not in parameters:
            checked_flag("use_thread", arguments.pop("use_thread", True))
        given = {}
        for name in (*OPTION_NAMES, "max_new_tokens"):
            if name in arguments and name not in parameters:
                given[name] = arguments.pop(name)
        longer = given.pop("max_new_tokens", None)
        if longer is not None:
            if given.get("max_tokens") is not None:
                raise InvalidRequest(
                    "max_tokens and max_new_tokens are two names of one argument; give one of them",
                    param="max_tokens",
                )
            given["max_tokens"] = longer
        return cls.of(given)

    def over(self, base: SamplingOptions) -> SamplingOptions:
        """These options, with what they leave open taken from `base`."""
        return SamplingOptions(
            **{
                name: getattr(base, name) if getattr(self, name) is None else getattr(self, name)
                for name in OPTION_NAMES
            }
        )

    def check(self, engine: EngineClient) -> None:
        """Refuse what no generation on the engine could use, also where every one sets its own."""
        if self.given():
            self.sampling(seed=0).validate(engine.info.vocab_size)

    def given(self) -> list[str]:
        """Names of the options that are set."""
        return [name for name in OPTION_NAMES if getattr(self, name) is not None]

    def sampling(self, *, seed: int, extra_stop: tuple[str, ...] = ()) -> Sampling:
        """The engine's form. `seed` is used when these options name none."""
        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in _SAMPLING_FIELDS
            if getattr(self, name) is not None
        }
        stop = self.stop or ()
        values["stop"] = stop + tuple(text for text in extra_stop if text not in stop)
        values["seed"] = seed if self.seed is None else self.seed
        return Sampling(**values)

    def logprobs(self) -> LogprobSpec | None:
        """What to report of log-probabilities, or None."""
        if self.return_logprob or self.top_logprobs_num or self.prompt_logprobs():
            return LogprobSpec(top=self.top_logprobs_num or 0)
        return None

    def prompt_logprobs(self) -> PromptLogprobs | None:
        """What to report of the log-probabilities of the text before, or None."""
        start = self.logprob_start_len
        if start is None or start < 0 or self.return_logprob is False:
            return None
        return PromptLogprobs(start=start, top=self.top_logprobs_num or 0)


OPTION_NAMES = tuple(field.name for field in fields(SamplingOptions))

# What holds where neither the generation nor the run says anything.
RUN_DEFAULTS = SamplingOptions(max_tokens=128, temperature=1.0, n=1)


def run_defaults() -> SamplingOptions:
    """`RUN_DEFAULTS` with what `global_config` says."""
    from stolon.lang.config import global_config

    return replace(RUN_DEFAULTS, skip_special_tokens=global_config.skip_special_tokens_in_output)
