"""What a batch needs of a program: runs that are ready to begin, and what a checkpoint knows it by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.arguments import described, unexpected
from stolon.lang.backend import engine_of
from stolon.lang.batch_options import BATCH_NAMES
from stolon.lang.body import BoundBody
from stolon.lang.checkpoint_lines import Identity
from stolon.lang.invocation import RUN_ARGUMENTS, Invocation
from stolon.lang.location import located
from stolon.lang.options import SamplingOptions
from stolon.lang.restored import is_plain
from stolon.lang.tracing import active_trace
from stolon.srt.client import EngineClient


@dataclass(frozen=True, kw_only=True)
class BatchProgram:
    """A program on an engine.

    Attributes:
        identity: what a checkpoint is compared by.
        prepare: of the index, the item and the run's seed, a run that is ready to begin; raises what
            the item's arguments raise.
        arguments: an item's arguments by name, for a checkpoint.
    """

    client: EngineClient
    identity: Identity
    is_async: bool
    prepare: Callable[[int, Any, int], Invocation]
    arguments: Callable[[Any], Any]


def batch_program(
    function: BoundBody,
    caller: str,
    sampling: dict[str, Any],
    backend: EngineClient | None,
) -> BatchProgram:
    """The program of a call of `caller`, `run_batch` or `arun_batch`, with its sampling arguments.

    Raises TypeError for an argument that is none of these, naming one that it may mean.
    """
    with located:
        options = SamplingOptions.take(sampling, ())
    if sampling:
        names = {"batch_kwargs", "generator_style", *BATCH_NAMES, *RUN_ARGUMENTS} - {"stream"}
        raise unexpected(caller, next(iter(sampling)), names)
    with located:
        engine = engine_of(backend)
        options.check(engine)

    def prepare(index: int, item: Any, seed: int) -> Invocation:
        args, kwargs = _arguments(index, item)
        trace = active_trace()
        if trace is not None:
            trace.end("a batch of programs runs here")
        call = function.bind_call(args, kwargs)
        return Invocation.of(function, call, engine, options, seed)

    return BatchProgram(
        client=engine,
        identity=Identity(
            program=function.name,
            signature=described(function.signature),
            model=engine.info.name,
            sampling={name: getattr(options, name) for name in options.given()},
        ),
        is_async=function.is_async,
        prepare=prepare,
        arguments=lambda item: _by_name(function, item),
    )


def _arguments(index: int, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An item as the arguments of a call."""
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, tuple | list):
        return tuple(item), {}
    raise InvalidRequest(
        f"item {index} of the batch is a {type(item).__name__}",
        hint="items are dicts of arguments, or tuples of positional ones",
    )


def _by_name(function: BoundBody, item: Any) -> Any:
    """Arguments that a checkpoint tells an item by. What is bound and no data is the program's."""
    if not isinstance(item, Mapping | tuple | list):
        return item
    args, kwargs = _arguments(0, item)
    try:
        given = function.signature.bind_partial(None, *args, **kwargs).arguments
    except TypeError:
        return item
    del given["s"]
    return {name: value for name, value in function.bound.items() if is_plain(value)} | given
