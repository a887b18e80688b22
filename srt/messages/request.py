"""What the engine is asked for: one block of a program, segment after segment."""

from __future__ import annotations

from typing import Literal

import msgspec

from stolon.constrained import GrammarSpec
from stolon.errors import InvalidRequest
from stolon.srt.messages.sampling import LogprobSpec, Sampling

# Limits on what one request may ask for. They bound memory and time.
MAX_SAMPLES = 128
MAX_CHOICES = 4096
MAX_SEGMENTS = 4096

SelectMethod = Literal[
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
    "sum",
]


class Text(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Literal text. Only `special` text (from a chat template) may spell special tokens."""

    text: str
    special: bool = False


class Tokens(msgspec.Struct, frozen=True, tag="tokens", forbid_unknown_fields=True):
    """Known token ids, taken as they are."""

    ids: list[int]


class Gen(msgspec.Struct, frozen=True, kw_only=True, tag="gen", forbid_unknown_fields=True):
    """Generate until a stop, the end of the grammar, or max_tokens.

    Attributes:
        name: variable of the program, for traces; the engine does not interpret it.
        heal: the literal before this generation is user text: if it ends in the middle of a token
            (trailing blanks), that token is generated anew under the constraint that it begins with
            those bytes (token healing). The text of the generation never includes them.
        logprobs: None reports none.
    """

    name: str | None = None
    sampling: Sampling = Sampling()
    grammar: GrammarSpec | None = None
    logprobs: LogprobSpec | None = None
    heal: bool = False


class Select(msgspec.Struct, frozen=True, kw_only=True, tag="select", forbid_unknown_fields=True):
    """Score every choice after the text so far, and append the best one or one that is drawn.

    Attributes:
        method: what is compared. ``token_length_normalized``: the mean log-prob of a choice's tokens.
            ``sum``: the log-prob of the whole choice. ``unconditional_likelihood_normalized``: the mean
            by which the text before raises the log-prob of a token. ``greedy_token_selection``: the
            walk along the likeliest token at each fork of the choices.
        temperature: 0 takes the best; else a choice is drawn with a probability in proportion to
            exp(score / temperature). With ``sum`` and 1 that is the model's own distribution, given that
            the text is one of the choices. Not for the greedy walk, which has no scores.
        seed: of the draw; as in `Sampling`.
    """

    choices: tuple[str, ...]
    name: str | None = None
    method: SelectMethod = "token_length_normalized"
    heal: bool = False
    temperature: float = 0.0
    seed: int | None = None

    def validate(self) -> None:
        """Raise InvalidRequest that names the first field out of range."""
        if not 0.0 <= self.temperature <= 100.0:
            raise InvalidRequest(
                f"temperature must be between 0 and 100, not {self.temperature}",
                param="temperature",
            )
        if self.temperature and self.method == "greedy_token_selection":
            raise InvalidRequest(
                "greedy_token_selection draws nothing, so it takes no temperature",
                param="temperature",
                hint="draw with the method sum",
            )
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InvalidRequest("seed must be between 0 and 2**63 - 1", param="seed")


Segment = Text | Tokens | Gen | Select


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report log-probs of the prompt (the leading Text and Tokens segments) from position `start` on."""

    start: int = 0
    top: int = 0


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One block of a program.

    Attributes:
        rid: unique id of the request.
        segments: what to append, in order. Leading Text/Tokens are the prompt.
        n: number of samples; each walks the whole block as its own branch after the shared prompt.
        stream: also send Delta events.
        salt: cache namespace; prefixes are only shared within the same salt.
        prompt_logprobs: None reports none.
        priority: larger is admitted earlier among equals in cache benefit.
    """

    rid: str
    segments: list[Segment]
    n: int = 1
    stream: bool = False
    salt: str = ""
    prompt_logprobs: PromptLogprobs | None = None
    priority: int = 0
