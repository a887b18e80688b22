"""A finished run as data: what a checkpoint keeps of it, and the state that is made of that again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from stolon.errors import ProgramError, StolonError
from stolon.lang.location import program_line
from stolon.lang.state import ProgramState
from stolon.lang.trace import Trace
from stolon.lang.variables import OpenScope, resolve, unknown


class SavedState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is kept of a finished run. All of it is JSON.

    Attributes:
        seed: of the run.
        variables: by name: the text, the list of texts, or plain data that the program has set.
        values: typed values that are plain data and not the variable itself.
        lost: by name, why a variable is not kept; ``name.value`` for a typed value.
        ret_value: what the body returned.
        ret_lost: why that is not kept.
        meta: token counts of the run, its time in seconds, and how each variable's call ended.
    """

    seed: int
    variables: dict[str, Any] = {}
    values: dict[str, Any] = {}
    lost: dict[str, str] = {}
    ret_value: Any = None
    ret_lost: str | None = None
    meta: dict[str, Any] = {}

    @classmethod
    def of(cls, state: ProgramState) -> SavedState:
        """Of a finished state."""
        saved = cls(seed=state.seed, meta=_meta(state.trace))
        for name, variable in list(state._branch.variables.items()):
            if not isinstance(variable, OpenScope):
                saved._keep(name, variable)
        if is_plain(state.ret_value):
            saved.ret_value = state.ret_value
        else:
            saved.ret_lost = _no_data(state.ret_value)
        return saved

    def _keep(self, name: str, variable: Any) -> None:
        try:
            value = resolve(variable)
        except StolonError as error:
            self.lost[name] = _no_value(error)
            return
        if not is_plain(value):
            self.lost[name] = _no_data(value)
            return
        self.variables[name] = value
        try:
            typed = resolve(variable, typed=True)
        except Exception as error:  # a class of the caller's may raise anything
            self.lost[f"{name}.value"] = _no_value(error)
            return
        if not is_plain(typed):
            self.lost[f"{name}.value"] = _no_data(typed)
        elif type(typed) is not type(value) or typed != value:
            self.values[name] = typed


class RestoredState:
    """The result of an item that was finished when the batch was resumed. It can only be read.

    Variables are there as the checkpoint keeps them. A typed value that is plain JSON data is too; an
    instance of a class is not, since the file names no classes: make it anew from the text. There is
    no text of the whole run, and no log-probs.

    Attributes:
        restored: True.
        program: name of the program.
        seed: of the run: ``run(seed=state.seed)`` repeats it.
        meta: token counts of the run, its time in seconds, and how each variable's call ended.
    """

    restored = True

    def __init__(self, program: str, saved: SavedState) -> None:
        self.program = program
        self._saved = saved

    @property
    def seed(self) -> int:
        return self._saved.seed

    @property
    def meta(self) -> dict[str, Any]:
        return self._saved.meta

    @property
    def ret_value(self) -> Any:
        """What the body returned."""
        if self._saved.ret_lost is not None:
            raise _not_kept("ret_value", self._saved.ret_lost)
        return self._saved.ret_value

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that are there."""
        return tuple(self._saved.variables)

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __contains__(self, name: object) -> bool:
        return name in self._saved.variables

    def get_var(self, name: str) -> Any:
        """Value of a variable: the text, the list of texts, or data that the program has set."""
        if name in self._saved.variables:
            return self._saved.variables[name]
        if name in self._saved.lost:
            raise _not_kept(repr(name), self._saved.lost[name])
        raise unknown(name, self._saved.variables)

    def value(self, name: str) -> Any:
        """Value of a variable in its own type, where that is plain JSON data."""
        lost = self._saved.lost.get(f"{name}.value")
        if lost is not None:
            raise _not_kept(
                f"the typed value of {name!r}", lost, hint=f"make it from the text: state[{name!r}]"
            )
        return self._saved.values[name] if name in self._saved.values else self.get_var(name)

    def error(self) -> None:
        """None: only runs that went well are restored."""
        return

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(ProgramState, name):
            raise AttributeError(
                f"a state that is restored from a checkpoint has no {name}; it has its variables, "
                f"value(), ret_value, seed and meta. run(seed=state.seed) repeats the run"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<RestoredState of {self.program!r}: {', '.join(self.variables) or 'no variables'}>"


def is_plain(value: Any) -> bool:
    """Whether a value comes back from JSON as it was."""
    try:
        return _is_plain(value)
    except (RecursionError, ValueError):
        return False


def _is_plain(value: Any) -> bool:
    if value is None or type(value) is bool:
        return True
    if type(value) is str:
        return value.isascii() or bool(json.dumps(value, ensure_ascii=False).encode("utf-8"))
    if type(value) is int:
        # What reads JSON elsewhere holds no more than 64 bits.
        return -(2**63) <= value < 2**64
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(key) for key in value) and all(
            map(_is_plain, value.values())
        )
    return False


def _no_value(error: Exception) -> str:
    text = error.message if isinstance(error, StolonError) else f"{type(error).__name__}: {error}"
    return "there is none: " + text.encode("utf-8", "backslashreplace").decode("utf-8")


def _no_data(value: Any) -> str:
    return f"a {type(value).__qualname__} is no plain JSON data, and nothing else is kept"


def _not_kept(what: str, why: str, *, hint: str | None = None) -> ProgramError:
    return ProgramError(f"{what} is not in the checkpoint: {why}", where=program_line(), hint=hint)


def _meta(trace: Trace) -> dict[str, Any]:
    tokens = trace.totals
    return {
        "cached_tokens": tokens.cached,
        "computed_tokens": tokens.computed,
        "forced_tokens": tokens.forced,
        "sampled_tokens": tokens.sampled,
        "seconds": round(trace.seconds, 6),
        "finish": _finishes(trace.calls),
    }


def _finishes(calls: Iterable[Any]) -> dict[str, str]:
    return {call.name: call.finish for call in calls if call.name is not None and not call.path}
