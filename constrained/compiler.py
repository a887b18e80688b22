"""From a spec to a compiled grammar: checked, compiled once per key, cached."""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import llguidance
import msgspec

from stolon.constrained.compile_cache import CompileCache, Key
from stolon.constrained.fsm import compile_fsm
from stolon.constrained.lark_forcing import forces_safely
from stolon.constrained.lark_text import check_lark, gbnf_to_lark
from stolon.constrained.limits import (
    CompileLimits,
    check_size,
    is_costly,
    is_costly_source,
)
from stolon.constrained.llg import DEAD_END, LlgGrammar, first_line
from stolon.constrained.masks import MaskPool
from stolon.constrained.matching import Grammar
from stolon.constrained.regular import regular_source, regular_tree, release, with_literal
from stolon.constrained.schema.budget import Budget, TooComplex
from stolon.constrained.schema.plan import SchemaText, json_source, schema_sources
from stolon.constrained.spec import GrammarSpec
from stolon.constrained.structural import EBNF_SPAN, structural_sources
from stolon.constrained.trial import Trial
from stolon.constrained.turns import short_turns
from stolon.constrained.vocabulary import Vocabulary
from stolon.constrained.wrapping import NO_FORCING, wrapped
from stolon.errors import GrammarError, UnsatisfiableGrammar

__all__ = ["CompileLimits", "Compiled", "GrammarCompiler", "compile_here"]

_TOO_MUCH = re.compile(r"fuel exhausted|too (?:large|big|many)|limit|exceed", re.IGNORECASE)
_TOO_PRECISE = re.compile(r"Value for '(\w+)' has too many digits")
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
            return _from_source(source, spec, self.vocabulary, self.pool, self.limits)


class _Renewal:
    """Runs in the child of a fork, where a lock may be held by a thread that is no more."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = weakref.ref(compiler)

    def __call__(self) -> None:
        compiler = self._compiler()
        if compiler is not None:
            compiler._cache.clear()
            compiler._trial.after_fork()


class Compiled(NamedTuple):
    """A grammar, and llguidance's form of it if it has one."""

    grammar: Grammar
    source: str | None


def compile_here(
    spec: GrammarSpec,
    prefix: bytes,
    vocabulary: Vocabulary,
    pool: MaskPool,
    limits: CompileLimits,
    budget: Budget | None = None,
    *,
    untried: bool = False,
) -> Compiled:
    """Compile in this thread, without cache or trial.

    Args:
        budget: for rewriting a schema; without, its steps and time have their usual bounds.
        untried: whether to leave alone what llguidance may take long over.

    Raises:
        TooComplex: rewriting the schema takes more than `budget`; or llguidance may take long, if `untried`.
        GrammarError: the spec is refused.
    """
    check_size(spec, prefix, limits)
    schema = SchemaText(spec.text) if spec.kind == "json_schema" else None

    def in_llguidance(sources: Iterator[str]) -> Compiled:
        return _in_llguidance(spec, sources, prefix, vocabulary, pool, limits)

    tree = None if spec.after else regular_tree(spec, schema)
    if tree is not None:
        tree = with_literal(prefix, tree)
        grammar = compile_fsm(
            tree, vocabulary, pool, lambda: in_llguidance(_sources(spec)).grammar, kind=spec.kind
        )
        parts = [tree]
        del tree
        release(parts)
        if grammar is not None:
            return Compiled(grammar, None)
    sources = _sources(spec, budget, schema)
    return in_llguidance(map(_cheap, sources) if untried and schema else sources)


def _cheap(source: str) -> str:
    """The source of a schema as it is. Raises TooComplex if llguidance may take long over it."""
    if is_costly_source(source):
        raise TooComplex("the schema is too complex to be compiled here")
    return source


def _in_llguidance(
    spec: GrammarSpec,
    sources: Iterator[str],
    prefix: bytes,
    vocabulary: Vocabulary,
    pool: MaskPool,
    limits: CompileLimits,
) -> Compiled:
    refused: GrammarError | None = None
    for inner in sources:
        source = wrapped(inner, prefix=prefix, after=spec.after, forcing=_forces(spec, inner))
        try:
            return Compiled(_from_source(source, spec, vocabulary, pool, limits), source)
        except GrammarError as error:
            refused = error
    assert refused is not None
    raise refused


def _sources(
    spec: GrammarSpec, budget: Budget | None = None, schema: SchemaText | None = None
) -> Iterator[str]:
    """llguidance sources of a spec, the cheapest first; a later one is for when one is refused."""
    if spec.kind == "json_schema":
        return schema_sources(
            schema or SchemaText(spec.text),
            whitespace=spec.whitespace,
            best_effort=spec.best_effort,
            budget=budget,
        )
    if spec.kind == "structural_tag":

        def span(inner: GrammarSpec) -> Iterator[str]:
            given = {"whitespace": spec.whitespace, "best_effort": spec.best_effort}
            return _sources(msgspec.structs.replace(inner, **given), budget)

        return structural_sources(spec.text, span)
    return iter((_text_source(spec),))


def _from_source(
    source: str,
    spec: GrammarSpec,
    vocabulary: Vocabulary,
    pool: MaskPool,
    limits: CompileLimits,
) -> Grammar:
    matcher = llguidance.LLMatcher(
        vocabulary.tokenizer, source, log_level=0, limits=limits.parser_limits()
    )
    if matcher.is_error():
        raise _refusal(spec, matcher.get_error())
    grammar = LlgGrammar(
        vocabulary,
        pool,
        matcher,
        # Measured: schemas take about 60 bytes a byte of source, small ones more.
        nbytes=(128 << 10) + 32 * len(source),
        forcing=NO_FORCING not in source[:200],
        dropped=tuple(json.loads(source).get("dropped", ())) if spec.best_effort else (),
    )
    if grammar.error is not None:
        if grammar.error.message == DEAD_END:
            raise UnsatisfiableGrammar(f"no text can satisfy this {spec.kind}")
        raise grammar.error
    return grammar


def _forces(spec: GrammarSpec, source: str) -> bool:
    """Whether forced runs may be computed. In our own grammars every repetition has a way out."""
    if spec.kind not in ("ebnf", "lark", "structural_tag"):
        return True
    return all(
        forces_safely(grammar["lark_grammar"])
        for grammar in json.loads(source)["grammars"]
        if spec.kind != "structural_tag" or grammar["name"].startswith(EBNF_SPAN)
    )


def _key(spec: GrammarSpec, prefix: bytes) -> Key:
    return (*msgspec.structs.astuple(_canonical(spec)), prefix)


def _canonical(spec: GrammarSpec) -> GrammarSpec:
    """The spec without what has no effect on its kind."""
    return (
        spec
        if spec.kind.startswith(("json", "structural"))
        else msgspec.structs.replace(spec, whitespace="pep")
    )


def _text_source(spec: GrammarSpec) -> str:
    """llguidance's form of anything but a schema, after our checks."""
    if spec.kind == "json_object":
        return json_source({"type": "object"}, spec.whitespace)
    if spec.kind in ("regex", "choice"):
        return regular_source(spec)
    lark = gbnf_to_lark(spec.text) if spec.kind == "ebnf" else spec.text
    return _lark(check_lark(lark))


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _refusal(spec: GrammarSpec, message: str) -> GrammarError:
    """llguidance's message, for a caller who does not know llguidance."""
    if spec.kind not in ("ebnf", "lark", "structural_tag"):
        digits = _TOO_PRECISE.search(message)
        if digits:
            return GrammarError(f"{digits[1]!r} has too many digits")
        if _TOO_MUCH.search(message):
            return GrammarError(
                f"the {spec.kind} is too large or too complex",
                hint="use fewer properties, alternatives and long repetitions",
            )
    reason = next(
        (line[len("error: ") :] for line in message.splitlines() if line.startswith("error: ")),
        first_line(message),
    )
    return GrammarError(f"the {spec.kind} is refused: {reason}")
