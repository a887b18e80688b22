"""Compiling one spec in this thread: an automaton where it is regular, else what llguidance makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import llguidance
import msgspec

from stolon.constrained.ebnf import ebnf_tree
from stolon.constrained.ebnf_lark import ebnf_source
from stolon.constrained.fsm import compile_fsm
from stolon.constrained.lark_forcing import forces_safely
from stolon.constrained.lark_text import check_lark
from stolon.constrained.limits import CompileLimits, check_size, is_costly_source
from stolon.constrained.llg import DEAD_END, LlgGrammar, first_line
from stolon.constrained.masks import MaskPool
from stolon.constrained.matching import Grammar
from stolon.constrained.regular import (
    regular_source,
    regular_tree,
    release,
    tree_source,
    with_literal,
)
from stolon.constrained.schema.budget import Budget, TooComplex
from stolon.constrained.schema.plan import SchemaText, json_source, schema_sources
from stolon.constrained.schema.unsatisfiable import contradiction
from stolon.constrained.spec import GrammarSpec
from stolon.constrained.structural import structural_sources
from stolon.constrained.vocabulary import Vocabulary
from stolon.constrained.wrapping import NO_FORCING, wrapped
from stolon.errors import GrammarError, UnsatisfiableGrammar

__all__ = ["Compiled", "compile_here", "from_source"]

_TOO_MUCH = re.compile(r"fuel exhausted|too (?:large|big|many)|limit|exceed", re.IGNORECASE)
_PLACE = re.compile(r"(?:at )?([0-9]+)\(([0-9]+)\): ")
_IN_JSON = re.compile(" at line [0-9]+ column [0-9]+$")
_TOO_PRECISE = re.compile(r"Value for '(\w+)' has too many digits")


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
    if spec.kind != "json_schema":
        return _compile(spec, None, prefix, vocabulary, pool, limits, budget, untried=untried)
    schema = SchemaText(spec.text)
    try:
        return _compile(spec, schema, prefix, vocabulary, pool, limits, budget, untried=untried)
    except TooComplex:
        raise
    except GrammarError as error:
        if error.where in (None, "/"):  # of the whole: which part of it is it?
            bundled = SchemaText(spec.text).bundled()
            found = contradiction(bundled.document, bundled.where)
            if found is not None:
                raise found from error
        raise


def _compile(
    spec: GrammarSpec,
    schema: SchemaText | None,
    prefix: bytes,
    vocabulary: Vocabulary,
    pool: MaskPool,
    limits: CompileLimits,
    budget: Budget | None,
    *,
    untried: bool,
) -> Compiled:
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
            return Compiled(from_source(source, spec, vocabulary, pool, limits), source)
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
            if inner.kind == "ebnf":
                # Not one terminal: what follows the span may begin as it could go on.
                return iter((ebnf_source(inner.text),))
            given = {"whitespace": spec.whitespace, "best_effort": spec.best_effort}
            return _sources(msgspec.structs.replace(inner, **given), budget)

        return structural_sources(spec.text, span)
    if spec.kind == "ebnf":
        return _ebnf_sources(spec.text)
    return iter((_text_source(spec),))


def from_source(
    source: str,
    spec: GrammarSpec,
    vocabulary: Vocabulary,
    pool: MaskPool,
    limits: CompileLimits,
) -> Grammar:
    """The grammar of llguidance's form of a spec. Raises GrammarError where it is refused."""
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
    return spec.kind != "lark" or forces_safely(json.loads(source)["grammars"][0]["lark_grammar"])


def _text_source(spec: GrammarSpec) -> str:
    """llguidance's form of anything but a schema, after our checks."""
    if spec.kind == "json_object":
        return json_source({"type": "object"}, spec.whitespace)
    if spec.kind in ("regex", "choice"):
        return regular_source(spec)
    return json.dumps({"grammars": [{"lark_grammar": check_lark(spec.text)}]})


def _ebnf_sources(text: str) -> Iterator[str]:
    tree = ebnf_tree(text)
    if tree is not None:
        yield tree_source(tree)
    yield ebnf_source(text)


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
    place = _PLACE.match(message)
    if place and reason.startswith(place.group()):
        reason = reason[place.end() :]
    where = None
    if place and spec.kind == "lark":  # else it is a place in what became of the text
        where = f"line {place[1]}"
        if check_lark(spec.text) == spec.text:
            where += f", column {place[2]}"
    return GrammarError(f"the {spec.kind} is refused: {_IN_JSON.sub('', reason)}", where=where)
