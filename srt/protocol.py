"""The typed messages between the language, the servers and the engine.

A *request* is one block of a program: the tokens and literals so far, then generations and selections up
to the point where the program needs a value. The engine walks the whole block and answers with *events*.
All of it is plain msgspec data: the same structs are passed in process and over a socket.
"""

from __future__ import annotations

from stolon.constrained import GrammarKind, GrammarSpec
from stolon.srt.messages.events import (
    ChoiceScore,
    Delta,
    Event,
    Failed,
    Finish,
    FinishKind,
    GenResult,
    PromptDone,
    SampleDone,
    SegmentDone,
    SelectResult,
    TokenLogprob,
    Usage,
)
from stolon.srt.messages.request import (
    MAX_CHOICES,
    MAX_SAMPLES,
    MAX_SEGMENTS,
    Gen,
    PromptLogprobs,
    Request,
    Segment,
    Select,
    SelectMethod,
    Text,
    Tokens,
)
from stolon.srt.messages.sampling import (
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    JumpForward,
    LogprobMode,
    LogprobSpec,
    Sampling,
    Speculation,
)
from stolon.srt.messages.types import check_types

__all__ = [
    "BLOCKS_VERSION",
    "MAX_CHOICES",
    "MAX_LOGIT_BIAS",
    "MAX_SAMPLES",
    "MAX_SEGMENTS",
    "MAX_STOP_CHARS",
    "MAX_STOP_STRINGS",
    "MAX_TOP_LOGPROBS",
    "ChoiceScore",
    "Delta",
    "Event",
    "Failed",
    "Finish",
    "FinishKind",
    "Gen",
    "GenResult",
    "GrammarKind",
    "GrammarSpec",
    "JumpForward",
    "LogprobMode",
    "LogprobSpec",
    "PromptDone",
    "PromptLogprobs",
    "Request",
    "SampleDone",
    "Sampling",
    "Segment",
    "SegmentDone",
    "Select",
    "SelectMethod",
    "SelectResult",
    "Speculation",
    "Text",
    "TokenLogprob",
    "Tokens",
    "Usage",
    "check_types",
]

BLOCKS_VERSION = 1
"""Of these messages, as they travel between a program and a server. Both sides must have the same."""
