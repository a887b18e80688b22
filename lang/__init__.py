"""The language: programs that call a language model many times.

Records lazily, sends the longest straight runs as single requests, and never tokenises anything
twice. Knows the runtime only through its messages and its `EngineClient`.
"""

from stolon.lang.backend import default_backend, flush_cache, get_server_info, set_default_backend
from stolon.lang.batch import BatchInterrupted
from stolon.lang.group import ForkGroup
from stolon.lang.meta import ChoiceScores
from stolon.lang.primitives import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    image,
    select,
    system,
    system_begin,
    system_end,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
    user_begin,
    user_end,
    video,
)
from stolon.lang.program import Function, function
from stolon.lang.restored import RestoredState
from stolon.lang.state import ProgramState
from stolon.lang.trace import CallTrace, Prices, TokenCounts, Trace

__all__ = [
    "BatchInterrupted",
    "CallTrace",
    "ChoiceScores",
    "ForkGroup",
    "Function",
    "Prices",
    "ProgramState",
    "RestoredState",
    "TokenCounts",
    "Trace",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "default_backend",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
