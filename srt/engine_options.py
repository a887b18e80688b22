"""The options that size an engine: what can be said of them before a model is read."""

from __future__ import annotations

from typing import get_args

from stolon.errors import InvalidRequest
from stolon.srt.protocol import Speculation

LEAST_TOKENS = 16
"""Lower bound of the options kv_tokens and context_length: in fewer no request has room."""
MAX_RUNNING = 4_096
"""Upper bound of the option max_running; each running sequence has a row of `context_length` slot numbers."""


def check_options(
    *,
    kv_tokens: int | None = None,
    context_length: int | None = None,
    max_running: int | None = None,
    step_tokens: int | None = None,
    threads: int | None = None,
    speculation: Speculation = "auto",
) -> None:
    """Raise InvalidRequest that names the first option out of range. None leaves a choice to the engine."""
    for name, value, least, most in (
        ("kv_tokens", kv_tokens, LEAST_TOKENS, 2**40),
        ("context_length", context_length, LEAST_TOKENS, 2**31),
        ("max_running", max_running, 1, MAX_RUNNING),
        ("step_tokens", step_tokens, 1, 2**20),
        ("threads", threads, 1, 1024),
    ):
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise InvalidRequest(
                f"{name} must be an integer between {least} and {most}, not {value!r}",
                param=name,
            )
    if speculation not in get_args(Speculation):
        raise InvalidRequest(
            f"speculation must be 'auto' or 'off', not {speculation!r}", param="speculation"
        )
