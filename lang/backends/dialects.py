"""What each server can do and how it wants it said, as data. `docs/backends.md` shows the same table.

A field of `protocol.Sampling` or a kind of constraint that a row does not name is one that the server does
not honour: asking for it is refused, never dropped. Names were taken from the servers' own sources or
documentation, in the version that a row says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stolon.errors import InvalidRequest
from stolon.srt.protocol import GrammarKind

Endpoint = Literal["chat", "completions"]
Form = Literal[
    "text",  # the pattern or grammar as it is
    "gbnf",  # as a GBNF grammar of exactly these texts
    "regex",  # choices, as an alternation of escaped texts
    "list",  # choices, as a list
    "schema",  # the JSON schema
    "schema_text",  # the JSON schema as a string
    "response_format",  # OpenAI's {"type": "json_schema", ...}
    "json_object",  # OpenAI's {"type": "json_object"}
    "object_schema",  # the schema {"type": "object"}
    "true",
]
Scoring = Literal["prompt_logprobs", "generate", "echo"]


@dataclass(frozen=True, slots=True)
class Spelling:
    """Where in the body a constraint goes (keys, joined by dots), and in which form."""

    path: str
    form: Form
    around: Mapping[str, Any] = field(default_factory=dict)
    """Further fields beside the last key of `path`."""


Constraints = Mapping[GrammarKind, Spelling]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server.

    Attributes:
        title: its name for people.
        version: what this row describes.
        endpoints: which it has.
        sampling: fields of `protocol.Sampling` that it honours, and their names there.
        always: fields that are sent even where they change nothing: the server's own default does.
        fixed: further fields of every body, for the same reason.
        top_k_off: what its top_k takes for "all tokens".
        constraints: what constrained text is asked for with; `constraints_of` says where they differ.
        max_tokens: name of the limit in chat requests; it is ``max_tokens`` in completions.
        unlimited: what is sent in completions for "as long as the context allows": a value, "omit" to
            send nothing, or None where it can't be said.
        logprobs: endpoints that report log-probs of generated tokens, with `max_top` alternatives.
        prefill: fields that make the server go on with the last message; None where it can't.
        samples: whether n samples of one seeded request are different.
        seed_bits: the seed is sent modulo two to this power.
        stops: how many stop strings it takes.
        scoring: how the log-probs of given text are had, None if not at all.
        scored: endpoints where they are.
        detected_by: what tells the server from others.
    """

    title: str
    version: str
    endpoints: tuple[Endpoint, ...] = ("chat", "completions")
    sampling: Mapping[str, str]
    always: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    top_k_off: int = 0
    constraints: Constraints = field(default_factory=dict)
    completion_constraints: Constraints | None = None
    max_tokens: str = "max_tokens"
    unlimited: int | Literal["omit"] | None = None
    logprobs: tuple[Endpoint, ...] = ()
    max_top: int = 0
    prefill: Mapping[str, Any] | None = None
    samples: bool = False
    seed_bits: int = 63
    stops: int | None = None
    scoring: Scoring | None = None
    scored: tuple[Endpoint, ...] = ()
    detected_by: str = ""

    def constraints_of(self, endpoint: Endpoint) -> Constraints:
        if endpoint == "completions" and self.completion_constraints is not None:
            return self.completion_constraints
        return self.constraints


def _same(*names: str, **others: str) -> dict[str, str]:
    return {name: name for name in names} | others


_OPENAI = _same(
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "seed",
)
_WIDE = _OPENAI | _same(
    "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"
)
_SHAPE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's own generation settings change where nothing is sent."""

_JSON_MODE: Constraints = {
    "json_schema": Spelling("response_format", "response_format"),
    "json_object": Spelling("response_format", "json_object"),
}
_GBNF: dict[GrammarKind, Spelling] = {
    "choice": Spelling("grammar", "gbnf"),
    "regex": Spelling("grammar", "gbnf"),
    "ebnf": Spelling("grammar", "text"),
}

DIALECTS: dict[str, Dialect] = {
    "openai": Dialect(
        title="OpenAI",
        version="API of 2026",
        sampling=_OPENAI,
        constraints=_JSON_MODE,
        completion_constraints={},
        # max_tokens is refused by models that reason.
        max_tokens="max_completion_tokens",
        logprobs=("chat", "completions"),
        max_top=20,
        samples=True,
        stops=4,
        detected_by="the host api.openai.com, or Azure's",
    ),
    "compatible": Dialect(
        title="any other server with OpenAI's API",
        version="",
        sampling=_OPENAI,
        constraints=_JSON_MODE,
        completion_constraints={},
        logprobs=("chat", "completions"),
        max_top=20,
        detected_by="nothing else fits",
    ),
    "vllm": Dialect(
        title="vLLM",
        # guided_* became structured_outputs in 0.12.
        version="0.12 to 0.32",
        sampling=_WIDE | _same("skip_special_tokens", include_stop="include_stop_str_in_output"),
        always=_SHAPE,
        constraints={
            "choice": Spelling("structured_outputs.choice", "list"),
            "regex": Spelling("structured_outputs.regex", "text"),
            "ebnf": Spelling("structured_outputs.grammar", "text"),
            "json_schema": Spelling("structured_outputs.json", "schema"),
            "json_object": Spelling("structured_outputs.json_object", "true"),
        },
        logprobs=("chat", "completions"),
        max_top=20,
        prefill={"continue_final_message": True, "add_generation_prompt": False},
        samples=True,
        scoring="prompt_logprobs",
        scored=("chat", "completions"),
        detected_by="owned_by vllm in /v1/models",
    ),
    "sglang": Dialect(
        title="SGLang",
        version="0.5",
        sampling=_WIDE | _same("stop_regex", "skip_special_tokens", include_stop="no_stop_trim"),
        always=_SHAPE,
        top_k_off=-1,
        constraints={
            "choice": Spelling("regex", "regex"),
            "regex": Spelling("regex", "text"),
            "ebnf": Spelling("ebnf", "text"),
            "json_schema": Spelling("response_format", "response_format"),
            "json_object": Spelling("response_format", "json_object"),
        },
        completion_constraints={
            "choice": Spelling("regex", "regex"),
            "regex": Spelling("regex", "text"),
            "ebnf": Spelling("ebnf", "text"),
            "json_schema": Spelling("json_schema", "schema_text"),
            "json_object": Spelling("response_format", "json_object"),
        },
        logprobs=("chat", "completions"),
        max_top=20,
        prefill={"continue_final_message": True},
        scoring="generate",
        scored=("completions",),
        detected_by="owned_by sglang in /v1/models",
    ),
    "llama-server": Dialect(
        title="llama.cpp's llama-server",
        version="builds of 2025 and 2026",
        sampling=_OPENAI
        | _same("top_k", "min_p", "ignore_eos", repetition_penalty="repeat_penalty"),
        always=_SHAPE,
        # The window of the penalties is 64 tokens by default.
        fixed={"cache_prompt": True, "repeat_last_n": -1},
        constraints=_GBNF
        | {
            "json_schema": Spelling("json_schema", "schema"),
            "json_object": Spelling("json_schema", "object_schema"),
        },
        unlimited=-1,
        logprobs=("chat", "completions"),
        max_top=20,
        # It goes on with a last message of the assistant unless it was started to do otherwise.
        prefill={},
        seed_bits=31,
        detected_by="owned_by llamacpp in /v1/models",
    ),
    "llama-cpp-python": Dialect(
        title="llama-cpp-python's server",
        version="0.3",
        sampling=_OPENAI | _same("top_k", "min_p", "min_tokens"),
        always=("temperature", "top_p", "top_k", "min_p"),
        # Its window is fixed when the model is loaded, so a penalty can't be what was asked for.
        fixed={"repeat_penalty": 1.0},
        constraints=_GBNF
        | {
            "json_schema": Spelling(
                "response_format.schema", "schema", around={"type": "json_object"}
            ),
            "json_object": Spelling("response_format", "json_object"),
        },
        completion_constraints=_GBNF | {"json_schema": Spelling("grammar", "gbnf")},
        unlimited=0,
        logprobs=("chat", "completions"),
        max_top=20,
        seed_bits=31,
        scoring="echo",
        scored=("completions",),
        detected_by="its OpenAPI description",
    ),
    "ollama": Dialect(
        title="Ollama",
        # The native API: its OpenAI-compatible one can't set top_k and the repeat penalty.
        version="0.12 and later",
        sampling=_same(
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "stop",
            "seed",
            repetition_penalty="repeat_penalty",
        ),
        always=_SHAPE,
        fixed={"repeat_last_n": -1},
        constraints={
            "json_schema": Spelling("format", "schema"),
            "json_object": Spelling("format", "object_schema"),
        },
        max_tokens="num_predict",
        unlimited=-1,
        logprobs=("chat", "completions"),
        max_top=20,
        seed_bits=31,
        detected_by="/api/version",
    ),
    "lmstudio": Dialect(
        title="LM Studio",
        version="0.3",
        sampling=_OPENAI | _same("top_k", repetition_penalty="repeat_penalty"),
        always=("temperature", "top_p", "top_k", "repetition_penalty"),
        constraints={"json_schema": Spelling("response_format", "response_format")},
        completion_constraints={},
        seed_bits=31,
        detected_by="/api/v0/models",
    ),
    "nim": Dialect(
        title="NVIDIA NIM for LLMs",
        version="1.x",
        sampling=_OPENAI,
        always=("temperature", "top_p"),
        constraints={
            "choice": Spelling("nvext.guided_choice", "list"),
            "regex": Spelling("nvext.guided_regex", "text"),
            "ebnf": Spelling("nvext.guided_grammar", "text"),
            "json_schema": Spelling("nvext.guided_json", "schema"),
            "json_object": Spelling("response_format", "json_object"),
        },
        logprobs=("chat", "completions"),
        max_top=20,
        detected_by="/v1/metadata",
    ),
    "tensorrt-llm": Dialect(
        title="TensorRT-LLM's trtllm-serve",
        # Needs guided_decoding_backend among its options.
        version="1.x",
        sampling=_WIDE | _same("skip_special_tokens", include_stop="include_stop_str_in_output"),
        always=_SHAPE,
        constraints={
            "choice": Spelling("response_format.regex", "regex", around={"type": "regex"}),
            "regex": Spelling("response_format.regex", "text", around={"type": "regex"}),
            "ebnf": Spelling("response_format.ebnf", "text", around={"type": "ebnf"}),
            "json_schema": Spelling("response_format.schema", "schema", around={"type": "json"}),
            "json_object": Spelling("response_format", "json_object"),
        },
        unlimited="omit",
        logprobs=("chat", "completions"),
        max_top=1,
        detected_by="owned_by tensorrt_llm in /v1/models",
    ),
    "lmdeploy": Dialect(
        title="LMDeploy",
        # It takes OpenAI's other penalties and logit_bias, and does nothing with them.
        version="0.9 and later",
        sampling=_same(
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "stop",
            "seed",
            "ignore_eos",
            "skip_special_tokens",
        ),
        always=_SHAPE,
        constraints={
            "choice": Spelling(
                "response_format.regex_schema", "regex", around={"type": "regex_schema"}
            ),
            "regex": Spelling(
                "response_format.regex_schema", "text", around={"type": "regex_schema"}
            ),
            "json_schema": Spelling("response_format", "response_format"),
            "json_object": Spelling("response_format", "json_object"),
        },
        completion_constraints={},
        logprobs=("chat", "completions"),
        max_top=20,
        detected_by="owned_by lmdeploy in /v1/models",
    ),
    "anthropic": Dialect(
        title="Anthropic",
        version="2023-06-01",
        endpoints=("chat",),
        sampling=_same("temperature", "top_p", "top_k", stop="stop_sequences"),
        # Structured outputs: Claude 4.5 and later; prefill: models before Claude 4.6.
        constraints={
            "json_schema": Spelling(
                "output_config.format.schema", "schema", around={"type": "json_schema"}
            )
        },
        prefill={},
    ),
    "litellm": Dialect(
        title="LiteLLM",
        version="1.x",
        endpoints=("chat",),
        sampling=_OPENAI,
        constraints=_JSON_MODE,
        logprobs=("chat",),
        max_top=20,
    ),
}


def dialect(name: str) -> Dialect:
    """The row of that name. Raises InvalidRequest that lists the names."""
    row = DIALECTS.get(name)
    if row is None:
        raise InvalidRequest(
            f"there is no dialect {name!r}",
            param="dialect",
            hint="one of " + ", ".join(DIALECTS),
        )
    return row
