"""`@function`: a Python function becomes a program."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from stolon.errors import InvalidRequest
from stolon.lang.arguments import unexpected
from stolon.lang.backend import engine_of, given_backend
from stolon.lang.batch_drivers import AsyncBatch, BlockingBatch
from stolon.lang.batch_options import BatchOptions
from stolon.lang.batch_program import batch_program
from stolon.lang.branch import Branch
from stolon.lang.compiled import CachedPrefix, CompiledFunction, cache_prefix
from stolon.lang.invocation import Invocation
from stolon.lang.location import located, program_line
from stolon.lang.options import (
    OPTION_NAMES,
    SamplingOptions,
    checked_flag,
    checked_seed,
    run_defaults,
)
from stolon.lang.plan import Plan
from stolon.lang.planning import plan_program
from stolon.lang.run import ProgramRun, refuse_on_loop
from stolon.lang.state import ProgramState
from stolon.lang.tracing import active_trace
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
        trace = active_trace()
        if trace is not None:
            return trace.run(self.name, *self._traced(args, kwargs), is_async=self.is_async)
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
        trace = active_trace()
        if trace is not None:
            return await trace.arun(self.name, *self._traced(args, kwargs))
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
        self, batch_kwargs: Iterable[Any], *, as_completed: Literal[True], **kwargs: Any
    ) -> Iterator[tuple[int, ProgramState]]: ...
    @overload
    def run_batch(
        self, batch_kwargs: Iterable[Any], *, generator_style: Literal[True], **kwargs: Any
    ) -> Iterator[ProgramState]: ...
    @overload
    def run_batch(
        self, batch_kwargs: Iterable[Any], *, return_exceptions: Literal[True], **kwargs: Any
    ) -> list[ProgramState | Exception]: ...
    @overload
    def run_batch(self, batch_kwargs: Iterable[Any], **kwargs: Any) -> list[ProgramState]: ...
    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        backend: EngineClient | None = None,
        seed: int | None = None,
        num_threads: int | Literal["auto"] = "auto",
        concurrency: int | Literal["auto"] | None = None,
        progress: bool | Literal["auto"] = False,
        progress_bar: bool = False,
        return_exceptions: bool = False,
        generator_style: bool = False,
        as_completed: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        retries: int = 2,
        backoff: float = 0.5,
        **sampling: Any,
    ) -> Any:
        """Run the program once per item, many at a time; states come in the order of the items.

        Args:
            batch_kwargs: dicts of arguments, or tuples or lists of positional ones, from any iterable. It is
                pulled from as places become free, in the calling thread.
            seed: item i runs with a seed derived from this one and i. Drawn if None.
            num_threads, concurrency: two names of one thing: programs running at once. "auto" begins
                with 64, adds more while the engine has no queue, and takes some away when requests
                queue up in it or are put back for lack of room. An ``async def`` program takes no
                thread; any other takes one while its body runs.
            progress, progress_bar: two names of one switch: a bar on stderr with items, failures,
                generated tokens per second and the time left; "auto" draws it on a terminal only.
            return_exceptions: failures stand in the list in the place of states. Otherwise the
                first failure lets no further item begin, and is raised when those that run are
                done; its attribute ``results`` is the list with the states that are finished, the
                exceptions, and None for items that never began. Its notes, and the ``where`` of a
                StolonError, name the item.
            generator_style: yield states in order as they come due, and keep none; `batch_kwargs` may be
                endless. At most as many items are ahead as may run at once.
            as_completed: the same, but yield (index, state) as they are finished.
            checkpoint: a JSON Lines file. Every item that ends is appended to it at once. The same
                call with the same file takes the items that ended well from there, as
                `RestoredState`, and runs the others; without `seed` it has the seed of the file, so
                that the result is that of a call that was never interrupted.
            retries, backoff: an item that fails with an error that may pass (its ``retryable`` is
                True: a lost connection, an overloaded server) is run anew with the same seed, so
                often, after so many seconds, doubled each time.
            sampling: as in `run`.

        Raises:
            BatchInterrupted: at Ctrl-C, a KeyboardInterrupt with ``results`` as above.
            InvalidRequest: the checkpoint belongs to another batch, or is in use.
        """
        refuse_on_loop(f"{self.name}.run_batch()")
        given = {
            "num_threads": num_threads,
            "concurrency": concurrency,
            "progress": progress,
            "progress_bar": progress_bar,
            "return_exceptions": return_exceptions,
            "as_completed": as_completed,
            "checkpoint": checkpoint,
            "retries": retries,
            "backoff": backoff,
        }
        with located:
            seed = checked_seed(seed)
            options = BatchOptions.of(given)
            if checked_flag("generator_style", generator_style) and as_completed:
                raise InvalidRequest(
                    "generator_style and as_completed are two orders; give one of them",
                    param="as_completed",
                )
        program = batch_program(self, "run_batch", sampling, backend, known=_RUN_ARGUMENTS)
        plan = BlockingBatch(program, batch_kwargs, options, seed)
        return plan.stream() if generator_style or as_completed else plan.collect()

    def arun_batch(
        self,
        batch_kwargs: Iterable[Any] | AsyncIterable[Any],
        *,
        backend: EngineClient | None = None,
        seed: int | None = None,
        **arguments: Any,
    ) -> AsyncBatch:
        """`run_batch` on the running loop: ``await`` it for the list, or iterate over it.

        ``async for index, state in fn.arun_batch(items)`` yields in order, with ``as_completed=True``
        as items are finished, and keeps no states. `batch_kwargs` may be an async iterable, too. Arguments
        are those of `run_batch` but for ``generator_style``. Cancelling it, or leaving the iteration,
        aborts what runs.
        """
        with located:
            seed = checked_seed(seed)
            options = BatchOptions.take(arguments)
        program = batch_program(self, "arun_batch", arguments, backend, known=_RUN_ARGUMENTS)
        return AsyncBatch(program, batch_kwargs, options, seed)

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
            call = self.bind_call(args[1:], kwargs)
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

    # -- before it runs --------------------------------------------------------------------------

    def trace(self, *, backend: EngineClient | None = None, **given: Any) -> Plan:
        """What the program will do, found by running its body with placeholders; nothing is generated.

        The trace ends early where the program depends on a value that is generated.

        Args:
            backend: the engine that it is traced for; the default one if that is there, else none: then
                roles are plain words and no tokens are counted.
            given: values of arguments; those without a value or a default are placeholders.

        Raises:
            TypeError: an argument is put in an f-string or asked for its value otherwise. It hides where
                the argument stands: append it with ``+``, or give it a value.
            Exception: what the body itself raises.
        """
        with located:
            engine = given_backend() if backend is None else engine_of(backend)
        return plan_program(self, engine, given, strict=True)

    def compile(self, backend: EngineClient | None = None) -> CompiledFunction:
        """The program with what is constant in it prepared on an engine: the text that every run begins
        with is computed, literals are tokenised, grammars are compiled.

        ``print(fn.compile().plan)`` shows what is known of it. Where the program depends on the value of
        an argument, or of what is generated, the plan ends; it runs all the same.

        Raises:
            GrammarError: a grammar of the program is refused.
        """
        with located:
            engine = engine_of(backend)
        return CompiledFunction(self, engine, plan_program(self, engine, {}, strict=False))

    def cache(self, backend: EngineClient | None = None) -> CachedPrefix:
        """Compute the constant text that every run begins with, so that the first one finds it."""
        with located:
            engine = engine_of(backend)
        return cache_prefix(plan_program(self, engine, {}, strict=False), engine)

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

    def bind_call(
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

        def call(state: ProgramState) -> Any:
            result = self.body(state, *args, **keywords)
            if inspect.iscoroutine(result) and not self.is_async:
                result.close()
                raise InvalidRequest(
                    f"the body of {self.name!r} returns a coroutine, which nothing would run",
                    where=_place(self.body),
                    hint="make it 'async def', and await there",
                )
            return result

        try:
            given = self.signature.bind_partial(None, *args, **kwargs).arguments
            for name in (*given, *kwargs):
                self._refuse_bound(name)
            self.signature.bind(None, *args, **keywords)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}; it takes {self._takes()}") from None
        return call

    def _traced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], SamplingOptions]:
        with located:
            options = SamplingOptions.take(kwargs, self.parameters)
        return self.bind_call(args, kwargs, also=_RUN_ARGUMENTS), options

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
        trace = active_trace()
        if trace is not None:
            trace.end("a batch of programs runs here")
        call = self.bind_call(args, kwargs)
        run = ProgramRun(
            name=self.name,
            client=engine,
            options=options.over(run_defaults()),
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
            seed = checked_seed(seed)
            stream = checked_flag("stream", stream)
            options = SamplingOptions.take(kwargs, self.parameters)
        # Before an engine is started for a call that can't be made.
        self.bind_call(args, kwargs, also=_RUN_ARGUMENTS)
        with located:
            engine = engine_of(backend)
            options.check(engine)
        state, call = self._state(args, kwargs, engine, options, seed, stream=stream)
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
def function(func: Body, num_api_spec_tokens: None = None) -> Function: ...
@overload
def function(func: None = None, num_api_spec_tokens: None = None) -> Callable[[Body], Function]: ...
@located
def function(
    func: Body | None = None, num_api_spec_tokens: int | None = None
) -> Function | Callable[[Body], Function]:
    """Decorator that makes a program of a function whose first parameter is named ``s``.

    `num_api_spec_tokens` is refused: several generations are never cut out of one answer here.
    """
    if num_api_spec_tokens is not None:
        raise InvalidRequest(
            "num_api_spec_tokens is not supported: every generation is asked for by itself",
            param="num_api_spec_tokens",
            hint="leave it out; the variables are the same, and a server that caches prefixes computes "
            "them once",
        )
    return function if func is None else Function(func)


def _place(body: Body) -> str | None:
    """``file.py:line`` where a body is defined, if that is known."""
    code = getattr(body, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else None


def _check_parameters(body: Body, signature: inspect.Signature) -> frozenset[str]:
    """Names of the parameters after ``s``."""
    names = list(signature.parameters)
    where = _place(body)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidRequest(
            "a program can't be a generator: nothing would run its body",
            where=where,
            hint="return a list; run(stream=True) and text_iter() give the text as it arrives",
        )
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
