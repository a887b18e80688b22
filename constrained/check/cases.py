"""What is checked and what came of it, as plain data that crosses the pipe to the worker."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["Case", "Instance", "Outcome", "Reply", "Setup", "Verdict", "outcome_of"]

Verdict = Literal["pass", "unsound", "incomplete", "error"]
Outcome = Literal[
    "exact", "untested", "incomplete", "refused", "unsound", "error", "timeout", "crash"
]


class Instance(msgspec.Struct, frozen=True):
    """A text that a grammar must accept or reject."""

    label: str
    text: str
    valid: bool


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A schema or a regex, and its instances.

    Attributes:
        name: unique in its suite.
        schema: the schema, for kind ``json_schema``.
        pattern: the regex, for kind ``regex``.
        draft: how to read a schema without ``$schema``.
    """

    name: str
    kind: Literal["json_schema", "regex"]
    instances: list[Instance]
    schema: Any = None
    pattern: str = ""
    draft: str | None = None


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the worker judges; the first line that it reads.

    Attributes:
        masks: compute the mask before each token, and time it, instead of accepting outright.
        walks: random texts per schema to be drawn from the masks and validated.
        whitespace: how instances are written, and what the grammar is told of it.
        documents: schemas that others may refer to, by address.
    """

    masks: bool = False
    walks: int = 0
    seed: int = 0
    whitespace: Literal["compact", "pep"] = "pep"
    documents: dict[str, Any] = {}


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came of a case. Times are in microseconds.

    Attributes:
        refusal: why it was not compiled; `where` is the place.
        empty: refused because no text at all satisfies it: then rejecting everything is right.
        verdicts: one for each instance.
        fatal: ``timeout`` or ``crash``, when the worker did not answer.
        compiling: until the grammar was there; `first_mask` until its first mask after that.
        masks: per token, the first apart.
        commits: per token.
        tokens: of the valid instances that were accepted; `forced` of them without a choice.
        runs: forced runs met; `strays` of them other than the tokenizer writes that text.
        walked: random texts that came to an end; `invalid` are those that a validator rejects.
        unjudged: texts that the validator could not judge.
    """

    refusal: str | None = None
    where: str | None = None
    empty: bool = False
    verdicts: list[Verdict] = []
    fatal: Literal["timeout", "crash"] | None = None
    compiling: float = 0.0
    first_mask: float = 0.0
    masks: list[float] = []
    commits: list[float] = []
    tokens: int = 0
    forced: int = 0
    runs: int = 0
    strays: int = 0
    walked: int = 0
    invalid: list[str] = []
    unjudged: int = 0


def outcome_of(reply: Reply) -> Outcome:
    """One word for a case; the worst that happened counts."""
    if reply.fatal:
        return reply.fatal
    if reply.invalid or "unsound" in reply.verdicts:
        return "unsound"
    if reply.refusal is not None and not reply.empty:
        return "refused"
    if "error" in reply.verdicts:
        return "error"
    if "incomplete" in reply.verdicts:
        return "incomplete"
    return "exact" if reply.verdicts else "untested"
