"""From specs to compiled grammars: each compiled once per key, cached, tried in another process if costly."""

from __future__ import annotations

import os
import weakref

import msgspec

from stolon.constrained.compilation import compile_here, from_source
from stolon.constrained.compile_cache import CompileCache, Key
from stolon.constrained.limits import CompileLimits, check_size, is_costly
from stolon.constrained.masks import MaskPool
from stolon.constrained.matching import Grammar
from stolon.constrained.schema.budget import Budget, TooComplex
from stolon.constrained.spec import GrammarSpec
from stolon.constrained.trial import Trial
from stolon.constrained.turns import short_turns
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import GrammarError

__all__ = ["GrammarCompiler"]

HERE_SECONDS = 0.1
"""What rewriting a schema may take in this process; one that takes longer goes to the other one.

It is Python, which gives way every half millisecond (`turns`), and so does freeing what it made."""


class GrammarCompiler:
    """Compiles specs against one vocabulary. Thread-safe; equal specs are compiled once.

    What may take long is compiled in a child process first, which is killed when it exceeds its
    limits; so no thread here is held by it. `close` ends that process.

    Args:
        vocabulary: what grammars are compiled against.
        limits: bounds on one grammar.
        cache_entries: compiled grammars and refusals kept, least recently used dropped first.
        cache_bytes: memory that they may take.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limits: CompileLimits | None = None,
        cache_entries: int = 512,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or CompileLimits()
        self.pool = MaskPool(vocabulary.size)
        self._cache = CompileCache(entries=cache_entries, max_bytes=cache_bytes)
        self._trial = Trial(self.limits)
        weakref.finalize(self, self._trial.close)
        os.register_at_fork(after_in_child=_Renewal(self))

    def compile(self, spec: GrammarSpec, *, prefix: bytes = b"") -> Grammar:
        """The grammar of `prefix` followed by a text of `spec`, cached or compiled in this thread.

        Args:
            spec: what the text must be.
            prefix: bytes that come first, whole UTF-8 characters (token healing: the end of the
                literal before, generated anew).

        Raises:
            GrammarError: the spec is refused; `where` is a JSON pointer or an offset, if known.
            EngineError: the process for costly specs can't be had; the next call tries again.
        """
        return self._cache.get(_key(spec, prefix), lambda: self._compile(spec, prefix))

    def compiled(self, spec: GrammarSpec, *, prefix: bytes = b"") -> Grammar | None:
        """What `compile` returns or raises, where it is known already; None where it has to compile."""
        return self._cache.peek(_key(spec, prefix))

    def close(self) -> None:
        """End the child process, if there is one. Costly specs are refused from then on."""
        self._trial.close()

    def _compile(self, spec: GrammarSpec, prefix: bytes) -> Grammar:
        with short_turns():
            check_size(spec, prefix, self.limits)
            source = None
            if is_costly(spec):
                source = self._trial.run(spec, prefix)
            if source is None:
                try:
                    budget = Budget(seconds=HERE_SECONDS)
                    return compile_here(
                        spec, prefix, self.vocabulary, self.pool, self.limits, budget, untried=True
                    ).grammar
                except TooComplex as error:
                    refused = error
                except GrammarError as error:
                    # What its traceback holds is freed before the cyclic collector may come for it.
                    error.__traceback__ = error.__context__ = None
                    raise
                refused.__traceback__ = refused.__context__ = None
                source = self._trial.run(spec, prefix)
                if source is None:
                    raise refused
            return from_source(source, spec, self.vocabulary, self.pool, self.limits)


class _Renewal:
    """Runs in the child of a fork, where a lock may be held by a thread that is no more."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = weakref.ref(compiler)

    def __call__(self) -> None:
        compiler = self._compiler()
        if compiler is not None:
            compiler._cache.clear()
            compiler._trial.after_fork()


def _key(spec: GrammarSpec, prefix: bytes) -> Key:
    return (*msgspec.structs.astuple(_canonical(spec)), prefix)


def _canonical(spec: GrammarSpec) -> GrammarSpec:
    """The spec without what has no effect on its kind."""
    return (
        spec
        if spec.kind.startswith(("json", "structural"))
        else msgspec.structs.replace(spec, whitespace="pep")
    )
