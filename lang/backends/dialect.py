"""The form in which it is said what a server can do; `dialects.py` has a row of it for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
        least_top: how many of these are asked for at least: some servers send nothing where it is 0.
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
    least_top: int = 0
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


def same(*names: str, **others: str) -> dict[str, str]:
    """Fields of the same name there, and those of other names."""
    return {name: name for name in names} | others


OPENAI = same(
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "seed",
)
WIDE = OPENAI | same(
    "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"
)
SHAPE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's own generation settings change where nothing is sent."""

JSON_MODE: Constraints = {
    "json_schema": Spelling("response_format", "response_format"),
    "json_object": Spelling("response_format", "json_object"),
}
