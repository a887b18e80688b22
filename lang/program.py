"""`@function`: a Python function becomes a program."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from stolon.errors import InvalidRequest
from stolon.lang import batch as batches
from stolon.lang.arguments import unexpected
from stolon.lang.backend import default_backend
from stolon.lang.branch import Branch
from stolon.lang.invocation import Invocation
from stolon.lang.location import located, program_line
from stolon.lang.options import OPTION_NAMES, RUN_DEFAULTS, SamplingOptions
from stolon.lang.run import ProgramRun, refuse_on_loop
from stolon.lang.state import ProgramState
from stolon.srt.client import EngineClient

Body = Callable[..., Any]

_RESERVED = ("backend", "seed", "stream")
_RUN_ARGUMENTS = (*_RESERVED, *OPTION_NAMES, "max_new_tokens")


class Function:
    """A program. Made by `function`; the body may be ``def`` or ``async def``.

    Calling it with a state as first argument runs the body inside that program. Calling it with
    its own arguments alone is `run`, for an ``async def`` body `arun`.
    """

    def __init__(self, body: Body, *, bound: Mapping[str, Any] | None = None) -> None:
        functools.update_wrapper(self, body)
        self.body = body
        self.name: str = getattr(body, "__qualname__", repr(body)).rpartition("<locals>.")[2]
        self.is_async = inspect.iscoroutinefunction(body)
        self.signature = inspect.signature(body)
        self.bound = dict(bound or {})
        self.parameters = _check_parameters(body, self.signature)

    # -- running ---------------------------------------------------------------------------------

    def run(
        self,
        *args: Any,
        backend: EngineClient | None = None,
        seed: int | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the program and wait for everything it generates.

        Args:
            args, kwargs: arguments of the body after ``s``.
            backend: engine to run on; the default one if None.
            seed: of the run; each generation derives its own from it, its branch and its position,
                so that the same seed gives the same result. Drawn at random if None.
            stream: return at once and let the body run in a thread; see `ProgramState.text_iter`.
            max_new_tokens (or max_tokens, 128), temperature (1.0), n (1), min_tokens, top_p, top_k,
                min_p, stop, stop_token_ids, stop_regex, frequency_penalty, presence_penalty,
                repetition_penalty, logit_bias, ignore_eos, return_logprob, top_logprobs_num, jump_forward,
                speculation, close_at_budget: used by every generation that does not set its own. A name
                that the body declares as its own parameter is passed to the body instead.

        Raises:
            StolonError: of a generation that failed, with the program line in ``where``, unless the
                program has seen the error and went on.
            Exception: what the body itself raises.
            TypeError: for arguments that the program does not take.

        What ends the run has the state in its attribute ``state``: every variable that was finished
        can be read there.
        """
        invocation = self._invoke(args, kwargs, backend=backend, seed=seed, stream=stream)
        if stream:
            invocation.start()
        elif self.is_async:
            invocation.run_on_loop()
        else:
            invocation.run_here()
        return invocation.state

    async def arun(
        self,
        *args: Any,
        backend: EngineClient | None = None,
        seed: int | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> ProgramState:
        """`run`, awaited. An ``async def`` body runs in the caller's loop, any other in a thread.

        Cancelling it aborts everything the program has asked for.
        """
        invocation = self._invoke(args, kwargs, backend=backend, seed=seed, stream=stream)
        if stream:
            invocation.start()
        elif self.is_async:
            await invocation.run_async()
        else:
            await invocation.run_in_thread()
        return invocation.state

    @overload
    def run_batch(
        self, batch: Iterable[Any], *, generator_style: Literal[True], **kwargs: Any
    ) -> Iterator[ProgramState]: ...
    @overload
    def run_batch(
        self, batch: Iterable[Any], *, return_exceptions: Literal[True], **kwargs: Any
    ) -> list[ProgramState | Exception]: ...
    @overload
    def run_batch(self, batch: Iterable[Any], **kwargs: Any) -> list[ProgramState]: ...
    def run_batch(
        self,
        batch: Iterable[Any],
        *,
        backend: EngineClient | None = None,
        seed: int | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress: bool = False,
        progress_bar: bool = False,
        return_exceptions: bool = False,
        generator_style: bool = False,
        **sampling: Any,
    ) -> Any:
        """Run the program once per item, many at a time; states come in the order of the items.

        Args:
            batch: dicts of arguments, or tuples or lists of positional ones.
            seed: item i runs with a seed derived from this one and i.
            num_threads: programs running at once; "auto" is the batch size, at most 64.
            progress, progress_bar: two names of one switch: a bar on stderr with tokens per second.
            return_exceptions: failures stand in the list in the place of states. Otherwise the
                first failure lets no further item begin, and is raised when those that run are
                done; its attribute ``results`` is the list with the states that are finished, the
                exceptions, and None for items that never began. Its notes, and the ``where`` of a
                StolonError, name the item.
            generator_style: yield states as they come due; at most `num_threads` run ahead.
            sampling: as in `run`.

        Raises:
            BatchInterrupted: at Ctrl-C, a KeyboardInterrupt with ``results`` as above.
        """
        refuse_on_loop(f"{self.name}.run_batch()")
        with located:
            options = SamplingOptions.take(sampling, ())
            limit = batches.thread_limit(num_threads)
        if sampling:
            known = {*inspect.signature(self.run_batch).parameters, *_RUN_ARGUMENTS} - {"stream"}
            raise unexpected("run_batch", next(iter(sampling)), known)
        engine = backend or default_backend()
        run_seed = batches.batch_seed(seed)

        def prepare(index: int, item: Any) -> Invocation:
            args, kwargs = self._item(index, item)
            state, call = self._state(
                args, kwargs, engine, options, batches.item_seed(run_seed, index), stream=False
            )
            return Invocation(state, call, is_async=self.is_async)

        plan = batches.Batch(
            prepare,
            batch,
            limit=limit,
            progress=progress or progress_bar,
            description=self.name,
            keep_going=return_exceptions,
        )
        return plan.stream() if generator_style else plan.collect()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With the state of another program first: run the body there; the result is the body's.

        Anywhere else: `run`, or for an ``async def`` body the coroutine of `arun`.
        """
        if args and isinstance(args[0], ProgramState):
            state = args[0]
            if self.is_async and not state.in_async_program:
                raise InvalidRequest(
                    f"{self.name} is an async program; {state.program!r} is not and can't await it",
                    where=program_line(),
                    hint="make the calling program 'async def'",
                )
            call = self._bind_call(args[1:], kwargs)
            return call(state)
        return self.arun(*args, **kwargs) if self.is_async else self.run(*args, **kwargs)

    def bind(self, **arguments: Any) -> Function:
        """A program with some arguments fixed. Giving one of them again in a call is an error."""
        for name in arguments:
            if name not in self.parameters and not self._takes_any:
                raise TypeError(
                    f"{self.name}() has no parameter {name!r} to bind; it takes {self._takes()}"
                )
            self._refuse_bound(name)
        return Function(self.body, bound=self.bound | arguments)

    def __repr__(self) -> str:
        return f"<program {self.name}{self.signature}>"

    # -- arguments -------------------------------------------------------------------------------

    @property
    def _takes_any(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())

    def _refuse_bound(self, name: str) -> None:
        if name in self.bound:
            raise InvalidRequest(
                f"{self.name}: argument {name!r} is bound already", param=name, where=program_line()
            )

    def _takes(self) -> str:
        """The program's own arguments in words."""
        marks: dict[Any, str] = {
            inspect.Parameter.VAR_POSITIONAL: "*",
            inspect.Parameter.VAR_KEYWORD: "**",
        }
        own = [p for p in list(self.signature.parameters.values())[1:] if p.name not in self.bound]
        return ", ".join(marks.get(p.kind, "") + p.name for p in own) or "no arguments"

    def _bind_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, also: Collection[str] = ()
    ) -> Callable[..., Any]:
        """The body with its arguments, waiting for the state; raises TypeError as a call would.

        `also` are names beside the program's own that a misspelt one may mean.
        """
        for name in kwargs:
            if name not in self.parameters and not self._takes_any:
                known = {*self.parameters, *also} - set(self.bound)
                raise unexpected(self.name, name, known, takes=self._takes())
        keywords = self.bound | kwargs
        try:
            given = self.signature.bind_partial(None, *args, **kwargs).arguments
            for name in (*given, *kwargs):
                self._refuse_bound(name)
            self.signature.bind(None, *args, **keywords)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}; it takes {self._takes()}") from None
        return lambda state: self.body(state, *args, **keywords)

    def _state(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        engine: EngineClient,
        options: SamplingOptions,
        seed: int | None,
        *,
        stream: bool,
    ) -> tuple[ProgramState, Callable[..., Any]]:
        call = self._bind_call(args, kwargs)
        run = ProgramRun(
            name=self.name,
            client=engine,
            options=options.over(RUN_DEFAULTS),
            seed=seed,
            streaming=stream,
            is_async=self.is_async,
        )
        return ProgramState(Branch(run), outside=True), call

    def _invoke(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        backend: EngineClient | None,
        seed: int | None,
        stream: bool,
    ) -> Invocation:
        with located:
            options = SamplingOptions.take(kwargs, self.parameters)
        # Before an engine is started for a call that can't be made.
        self._bind_call(args, kwargs, also=_RUN_ARGUMENTS)
        state, call = self._state(
            args, kwargs, backend or default_backend(), options, seed, stream=stream
        )
        return Invocation(state, call, is_async=self.is_async)

    def _item(self, index: int, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(item, Mapping):
            args, kwargs = (), dict(item)
        elif isinstance(item, tuple | list):
            args, kwargs = tuple(item), {}
        else:
            raise InvalidRequest(
                f"item {index} of the batch is a {type(item).__name__}",
                hint="items are dicts of arguments, or tuples of positional ones",
            )
        return args, kwargs


@overload
def function(body: Body) -> Function: ...
@overload
def function(body: None = None) -> Callable[[Body], Function]: ...
def function(body: Body | None = None) -> Function | Callable[[Body], Function]:
    """Decorator that makes a program of a function whose first parameter is named ``s``."""
    return function if body is None else Function(body)


def _check_parameters(body: Body, signature: inspect.Signature) -> frozenset[str]:
    """Names of the parameters after ``s``."""
    names = list(signature.parameters)
    code = getattr(body, "__code__", None)
    where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else None
    if not names or names[0] != "s":
        raise InvalidRequest(
            f"the first parameter of a program must be named s, not {names[0]!r}"
            if names
            else "a program needs a first parameter named s",
            where=where,
        )
    for name in _RESERVED:
        if name in names:
            raise InvalidRequest(
                f"a program can't have a parameter {name!r}: it is an argument of run()",
                where=where,
            )
    return frozenset(names[1:])
