"""`@function`: a Python function becomes a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, overload

from stolon.errors import InvalidRequest
from stolon.lang.backend import engine_of, given_backend
from stolon.lang.batch_calls import BatchCalls
from stolon.lang.body import Body
from stolon.lang.compiled import CachedPrefix, CompiledFunction, cache_prefix
from stolon.lang.invocation import RUN_ARGUMENTS, Invocation
from stolon.lang.location import located, program_line
from stolon.lang.option_checks import checked_flag, checked_seed
from stolon.lang.options import SamplingOptions
from stolon.lang.plan import Plan
from stolon.lang.planning import plan_program
from stolon.lang.state import ProgramState
from stolon.lang.tracing import active_trace
from stolon.srt.client import EngineClient


class Function(BatchCalls):
    """A program. Made by `function`; the body may be ``def`` or ``async def``.

    Calling it with a state as first argument runs the body inside that program. Calling it with
    its own arguments alone is `run`, for an ``async def`` body `arun`.
    """

    def __init__(self, body: Body, bound: Mapping[str, Any] | None = None) -> None:
        functools.update_wrapper(self, body)
        super().__init__(body, bound)

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With the state of another program first: run the body there; the result is the body's.

        Anywhere else: `run`, or for an ``async def`` body the coroutine of `arun`.
        """
        if args and isinstance(args[0], ProgramState):
            state = args[0]
            self.check_caller(state)
            call = self.bind_call(args[1:], kwargs)
            return call(state)
        return self.arun(*args, **kwargs) if self.is_async else self.run(*args, **kwargs)

    def check_caller(self, state: ProgramState) -> None:
        """Raise InvalidRequest if it must be awaited and the program of `state` can't."""
        if self.is_async and not state.in_async_program:
            raise InvalidRequest(
                f"{self.name} is an async program; {state.program!r} is not and can't await it",
                where=program_line(),
                hint="make the calling program 'async def'",
            )

    def bind(self, **arguments: Any) -> Function:
        """A program with some arguments fixed. Giving one of them again in a call is an error."""
        return Function(self.body, self.with_bound(arguments))

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

    # -- one call -------------------------------------------------------------------------------

    def _traced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], SamplingOptions]:
        with located:
            options = SamplingOptions.take(kwargs, self.parameters)
        return self.bind_call(args, kwargs, also=RUN_ARGUMENTS), options

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
        call = self.bind_call(args, kwargs, also=RUN_ARGUMENTS)
        with located:
            engine = engine_of(backend)
            options.check(engine)
        return Invocation.of(self, call, engine, options, seed, stream=stream)


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
