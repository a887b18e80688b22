"""The one exception tree of Stolon.

::

    StolonError
    ├── InvalidRequest              the caller's request can't be served as it is written
    │   ├── ContextLengthExceeded   the prompt alone is longer than the model's context
    │   ├── GrammarError            a regex, schema or grammar is refused; `where` says where
    │   │   └── UnsatisfiableGrammar    it is understood, and no text at all satisfies it
    │   ├── TemplateError           a chat template can't be parsed or raises
    │   └── UnknownVariable         a program has no such variable; also a KeyError
    ├── ModelError                  a model can't be had or used
    │   ├── ModelNotFound           no such name, path or id
    │   ├── DownloadError           the package index or hub could not deliver, or the checksum is wrong
    │   ├── ModelFileError          a file is missing, truncated or corrupt
    │   └── UnsupportedModel        an architecture, tensor type or tokenizer that is not implemented
    ├── EngineError                 the engine can't serve now
    │   ├── EngineClosed            it was shut down, or its process is gone
    │   ├── Overloaded              its queue is full; retry later
    │   ├── Aborted                 the request was cancelled
    │   ├── InternalError           a fault of ours; the request failed, the engine goes on
    │   └── BackendError            another program's server failed, or its answer makes no sense
    │       ├── BackendUnavailable  it can't be reached, is gone, or is not ready; retry later
    │       └── AccessDenied        it wants a key, or another one
    └── ProgramError                an exception inside an `@function` program, with the program's line

This module imports nothing from the package, so that every folder may use it.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "Aborted",
    "AccessDenied",
    "BackendError",
    "BackendUnavailable",
    "ContextLengthExceeded",
    "DownloadError",
    "EngineClosed",
    "EngineError",
    "GrammarError",
    "InternalError",
    "InvalidRequest",
    "ModelError",
    "ModelFileError",
    "ModelNotFound",
    "Overloaded",
    "ProgramError",
    "StolonError",
    "TemplateError",
    "UnknownVariable",
    "UnsatisfiableGrammar",
    "UnsupportedModel",
    "error_from_code",
]


class StolonError(Exception):
    """Base of every error that Stolon raises on purpose.

    Attributes:
        code: stable machine-readable name of the kind of error.
        status: the HTTP status a server answers with.
        retryable: whether the same request may well succeed a little later.
        message: one sentence: what is wrong.
        param: the request field at fault, if one is.
        where: the place at fault: a file and offset, a JSON pointer, a line of a program.
        hint: what to do about it.
        branch: the branch of the program that it belongs to, as ``fork.child`` of each level (``0.3/1.0``);
            None for the root branch, and outside of programs.
        request: id of the engine request that failed, if one did.
        segment: index of the segment of an engine request that it is about, if it is about one.
        state: the `ProgramState` of the run that it ended, where finished variables can be read; None
            for an error that ended none.
    """

    code: ClassVar[str] = "stolon_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.where = where
        self.hint = hint
        self.branch: str | None = None
        self.request: str | None = None
        self.segment: int | None = None
        self.state: Any = None

    def __str__(self) -> str:
        text = self.message
        place = [f"at {self.where}"] if self.where else []
        place += [f"branch {self.branch}"] if self.branch else []
        place += [f"request {self.request}"] if self.request else []
        if place:
            text += f" [{', '.join(place)}]"
        if self.hint:
            text += f" ({self.hint})"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # A state is bound to its process: what is pickled is the error alone.
        fields = {name: value for name, value in vars(self).items() if name != "state"}
        return type(self), self.args, fields | {"state": None}


class InvalidRequest(StolonError):
    """The caller's request can't be served as it is written."""

    code = "invalid_request"
    status = 400


class ContextLengthExceeded(InvalidRequest):
    """The prompt alone is longer than the model's context."""

    code = "context_length_exceeded"


class GrammarError(InvalidRequest):
    """A regex, schema or grammar is refused. `where` is a JSON pointer or an offset into the pattern."""

    code = "invalid_grammar"


class UnsatisfiableGrammar(GrammarError):
    """A regex, schema or grammar that is understood, and that no text at all satisfies."""

    code = "unsatisfiable_grammar"


class TemplateError(InvalidRequest):
    """A chat template can't be parsed, raises, or exceeds its budget."""

    code = "invalid_template"


class UnknownVariable(InvalidRequest, KeyError):
    """A program has no variable of that name. Also a KeyError, as of any other mapping."""

    code = "unknown_variable"


class ModelError(StolonError):
    """A model can't be had or used."""

    code = "model_error"


class ModelNotFound(ModelError):
    """There is no model of that name, path or id."""

    code = "model_not_found"
    status = 404


class DownloadError(ModelError):
    """The package index or the hub could not deliver the model, or its checksum is wrong."""

    code = "download_failed"


class ModelFileError(ModelError):
    """A model file is missing, truncated or corrupt. `where` names the file and the byte offset."""

    code = "model_file_invalid"


class UnsupportedModel(ModelError):
    """An architecture, tensor type or tokenizer that is not implemented."""

    code = "model_unsupported"


class EngineError(StolonError):
    """The engine can't serve the request now."""

    code = "engine_error"
    status = 503


class EngineClosed(EngineError):
    """The engine was shut down, or its process is gone."""

    code = "engine_closed"


class Overloaded(EngineError):
    """The queue is full. Retry later."""

    code = "overloaded"
    status = 429
    retryable = True


class Aborted(EngineError):
    """The request was cancelled before it finished."""

    code = "aborted"
    status = 499


class InternalError(EngineError):
    """A fault of ours. The request failed; the engine goes on."""

    code = "internal_error"
    status = 500


class BackendError(EngineError):
    """A server that programs run on failed, or its answer makes no sense. The message names the server."""

    code = "backend_error"
    status = 502


class BackendUnavailable(BackendError):
    """The server can't be reached, went away in the middle, did not answer in time, or is not ready."""

    code = "backend_unavailable"
    status = 503
    retryable = True


class AccessDenied(BackendError):
    """The server wants a key, or does not accept this one."""

    code = "access_denied"


class ProgramError(StolonError):
    """An exception inside an `@function` program. `where` is ``file:line``; `__cause__` the original."""

    code = "program_error"


def _subclasses(kind: type[StolonError]) -> list[type[StolonError]]:
    return [kind] + [deeper for child in kind.__subclasses__() for deeper in _subclasses(child)]


def error_from_code(
    code: str,
    message: str,
    *,
    param: str | None = None,
    where: str | None = None,
    hint: str | None = None,
) -> StolonError:
    """Rebuild an error that crossed a process boundary as plain fields; unknown codes give StolonError."""
    for kind in _subclasses(StolonError):
        if kind.code == code:
            return kind(message, param=param, where=where, hint=hint)
    return StolonError(message, param=param, where=where, hint=hint)
