"""`global_config`: settings of the process, with the names that SGLang gives them."""

from __future__ import annotations

from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang import backend as backends
from stolon.lang.location import located

_KINDS: dict[str, type] = {
    "verbosity": int,
    "skip_special_tokens_in_output": bool,
    "spaces_between_special_tokens_in_out": bool,
    "enable_precache_with_tracing": bool,
    "enable_parallel_encoding": bool,
}


class GlobalConfig:
    """Read when a run begins. Other names, and values of another type, are refused.

    Attributes:
        verbosity: 2 and above prints the text of every run when it is over.
        default_backend: what `set_default_backend` sets; None for the embedded engine.
        skip_special_tokens_in_output: False keeps special tokens in every generated text; an argument
            ``skip_special_tokens`` of a run or a generation goes before it.
        enable_precache_with_tracing, spaces_between_special_tokens_in_out, enable_parallel_encoding: they may
            be set, and change nothing: the items of a batch wait for a beginning that another one is just
            computing, a text is what its tokens spell, without added blanks, and joined branches are
            always appended as text.
    """

    verbosity: int
    skip_special_tokens_in_output: bool
    spaces_between_special_tokens_in_out: bool
    enable_precache_with_tracing: bool
    enable_parallel_encoding: bool

    def __init__(self) -> None:
        self.verbosity = 0
        self.skip_special_tokens_in_output = True
        self.spaces_between_special_tokens_in_out = True
        self.enable_precache_with_tracing = True
        self.enable_parallel_encoding = True

    @property
    def default_backend(self) -> Any:
        """Backend of programs that name none; None for the embedded engine."""
        return backends.given_backend()

    @default_backend.setter
    def default_backend(self, backend: Any) -> None:
        backends.set_default_backend(backend)

    @located
    def __setattr__(self, name: str, value: Any) -> None:
        kind = _KINDS.get(name)
        if kind is not None:
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise InvalidRequest(
                    f"global_config.{name} must be {kind.__name__}, not {value!r}", param=name
                )
        elif name != "default_backend":
            raise InvalidRequest(
                f"global_config has no {name!r}; it has default_backend, {', '.join(_KINDS)}",
                param=name,
            )
        super().__setattr__(name, value)


global_config = GlobalConfig()
