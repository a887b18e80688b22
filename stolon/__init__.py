"""Stolon: structured generation, a language and the runtime built with it.

Names are imported when they are first used: ``import stolon`` itself loads neither the language
    nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stolon.errors import StolonError as StolonError
    from stolon.lang import BatchInterrupted as BatchInterrupted
    from stolon.lang import ChoiceScores as ChoiceScores
    from stolon.lang import ForkGroup as ForkGroup
    from stolon.lang import Function as Function
    from stolon.lang import Prices as Prices
    from stolon.lang import ProgramState as ProgramState
    from stolon.lang import RestoredState as RestoredState
    from stolon.lang import Trace as Trace
    from stolon.lang import assistant as assistant
    from stolon.lang import assistant_begin as assistant_begin
    from stolon.lang import assistant_end as assistant_end
    from stolon.lang import flush_cache as flush_cache
    from stolon.lang import function as function
    from stolon.lang import gen as gen
    from stolon.lang import gen_int as gen_int
    from stolon.lang import gen_string as gen_string
    from stolon.lang import get_server_info as get_server_info
    from stolon.lang import greedy_token_selection as greedy_token_selection
    from stolon.lang import image as image
    from stolon.lang import select as select
    from stolon.lang import set_default_backend as set_default_backend
    from stolon.lang import system as system
    from stolon.lang import system_begin as system_begin
    from stolon.lang import system_end as system_end
    from stolon.lang import token_length_normalized as token_length_normalized
    from stolon.lang import (
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from stolon.lang import user as user
    from stolon.lang import user_begin as user_begin
    from stolon.lang import user_end as user_end
    from stolon.lang import video as video
    from stolon.srt import Engine as Engine

    __version__: str

__all__ = [
    "BatchInterrupted",
    "ChoiceScores",
    "Engine",
    "ForkGroup",
    "Function",
    "Prices",
    "ProgramState",
    "RestoredState",
    "StolonError",
    "Trace",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
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

_ELSEWHERE = {"Engine": "stolon.srt", "StolonError": "stolon.errors"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("stolon")
    else:
        value = getattr(import_module(_ELSEWHERE.get(name, "stolon.lang")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
