"""From a spec to a compiled grammar: checked, compiled once per key, cached."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

import llguidance

from stolon.constrained.audit import Audited, audit_schema
from stolon.constrained.choices import choices_to_lark, lark_string, parse_choices
from stolon.constrained.lark_text import check_lark, gbnf_to_lark
from stolon.constrained.llg import DEAD_END, LlgGrammar, first_line
from stolon.constrained.masks import MaskPool
from stolon.constrained.matching import Grammar
from stolon.constrained.regex import check_regex
from stolon.constrained.spec import GrammarSpec
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import GrammarError

__all__ = ["CompileLimits", "GrammarCompiler"]

_SEPARATORS = {"compact": (",", ":"), "pep": (", ", ": ")}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """What one grammar may cost. Beyond it, it is refused when compiled, or fails while it runs.

    Attributes:
        text_bytes: UTF-8 size of a JSON schema or a list of choices.
        pattern_bytes: UTF-8 size of a regex, EBNF or Lark text.
        prefix_bytes: size of the literal prefix.
        grammar_size: symbols in the productions.
        lexer_fuel: work to build the lexer; about 50,000 per ms.
        step_fuel: lexer work for one mask; about 14,000 per ms.
        step_items: parser items for one mask; about 20,000 per ms.
        row_items: parser items at one byte, the breadth of ambiguity.
        lexer_states: states of the lexer, 1-2 KB each.
    """

    text_bytes: int = 256 << 10
    pattern_bytes: int = 64 << 10
    prefix_bytes: int = 1024
    grammar_size: int = 500_000
    lexer_fuel: int = 1_000_000
    step_fuel: int = 200_000
    step_items: int = 50_000
    row_items: int = 2_000
    lexer_states: int = 50_000

    def parser_limits(self) -> llguidance.LLParserLimits:
        """The same, for llguidance."""
        return llguidance.LLParserLimits(
            max_items_in_row=self.row_items,
            initial_lexer_fuel=self.lexer_fuel,
            step_lexer_fuel=self.step_fuel,
            step_max_items=self.step_items,
            max_lexer_states=self.lexer_states,
            max_grammar_size=self.grammar_size,
            verbose_errors=False,
        )


_TRANSLATIONS = (
    (
        "'minProperties' and 'maxProperties' need every name in 'properties' to be required",
        "min/maxProperties only",
    ),
    ("'oneOf' is only supported where its branches can be told apart", "oneOf constraints are not"),
    ("an anchor or word boundary inside the pattern is not supported", "lookarounds not supported"),
)

_Key = tuple[str, str, str, bytes]


class GrammarCompiler:
    """Compiles specs against one vocabulary. Thread-safe; equal specs are compiled once.

    Args:
        vocabulary: what grammars are compiled against.
        limits: bounds on one grammar.
        cache_entries: compiled grammars and refusals kept, least recently used dropped first.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limits: CompileLimits | None = None,
        cache_entries: int = 512,
    ) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or CompileLimits()
        self.pool = MaskPool(vocabulary.size)
        self._entries = cache_entries
        self._cache: OrderedDict[_Key, Future[Grammar]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, spec: GrammarSpec, *, prefix: bytes = b"") -> Grammar:
        """The grammar of `prefix` followed by a text of `spec`, cached or compiled in this thread.

        Args:
            spec: what the text must be.
            prefix: bytes that come first, whole UTF-8 characters (token healing: the end of the
                literal before, generated anew).

        Raises:
            GrammarError: the spec is refused; `where` is a JSON pointer or an offset, if known.
        """
        whitespace = spec.whitespace if spec.kind.startswith("json") else ""
        key = (spec.kind, spec.text, whitespace, prefix)
        with self._lock:
            future = self._cache.get(key)
            mine = future is None
            if future is None:
                future = self._cache[key] = Future()
                while len(self._cache) > self._entries:
                    self._cache.popitem(last=False)
            else:
                self._cache.move_to_end(key)
        if mine:
            try:
                future.set_result(self._compile(spec, prefix))
            except GrammarError as error:
                future.set_exception(error)
            except BaseException as error:
                with self._lock:
                    if self._cache.get(key) is future:
                        del self._cache[key]
                future.set_exception(error)
                raise
        try:
            return future.result()
        except GrammarError as error:
            # A fresh copy: one exception object must not collect the tracebacks of many requests.
            raise GrammarError(error.message, where=error.where, hint=error.hint) from None

    def _compile(self, spec: GrammarSpec, prefix: bytes) -> Grammar:
        self._check_size(spec, prefix)
        audited = None
        if spec.kind == "json_object":
            audited = Audited({"type": "object"}, {})
        elif spec.kind == "json_schema":
            audited = audit_schema(spec.text)
        source = _json_source(audited, spec.whitespace) if audited else _text_source(spec)
        source = _with_prefix(source, prefix, forcing=spec.kind not in ("ebnf", "lark"))
        matcher = llguidance.LLMatcher(
            self.vocabulary.tokenizer, source, log_level=0, limits=self.limits.parser_limits()
        )
        if matcher.is_error():
            raise _refusal(spec, matcher.get_error(), audited)
        grammar = LlgGrammar(self.vocabulary, self.pool, matcher)
        if grammar.error is not None:
            if grammar.error.message == DEAD_END:
                raise GrammarError(f"no text can satisfy this {spec.kind}")
            raise grammar.error
        return grammar

    def _check_size(self, spec: GrammarSpec, prefix: bytes) -> None:
        limits = self.limits
        try:
            size = len(spec.text.encode())
        except UnicodeEncodeError:
            raise GrammarError(f"the {spec.kind} text holds half of a surrogate pair") from None
        bound = (
            limits.text_bytes if spec.kind in ("json_schema", "choice") else limits.pattern_bytes
        )
        if size > bound:
            raise GrammarError(
                f"the {spec.kind} text has {size:,} bytes", hint=f"the limit is {bound:,}"
            )
        if spec.kind == "json_object" and spec.text:
            raise GrammarError("json_object takes no text", hint="use json_schema for a schema")
        if len(prefix) > limits.prefix_bytes:
            raise GrammarError(f"the prefix has {len(prefix):,} bytes")


def _text_source(spec: GrammarSpec) -> str:
    """llguidance's form of a choice, regex or grammar, after our checks."""
    if spec.kind == "choice":
        return _lark(choices_to_lark(parse_choices(spec.text)))
    if spec.kind == "regex":
        check_regex(spec.text)
        return str(llguidance.LLMatcher.grammar_from_regex(spec.text))
    lark = gbnf_to_lark(spec.text) if spec.kind == "ebnf" else spec.text
    check_lark(lark)
    return _lark(lark)


def _json_source(audited: Audited, whitespace: str) -> str:
    item, key = _SEPARATORS[whitespace]
    return str(
        llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(audited.schema),
            overrides={"whitespace_flexible": False, "item_separator": item, "key_separator": key},
        )
    )


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _with_prefix(source: str, prefix: bytes, *, forcing: bool) -> str:
    """Put literal text before a grammar.

    Without `forcing` llguidance computes no forced runs: a Lark terminal that nothing can end, as
    in ``/a+/ "ab"``, would keep it busy for ever, with no limit that stops it.
    """
    if not prefix and forcing:
        return source
    try:
        literal = lark_string(prefix.decode()) if prefix else ""
    except UnicodeDecodeError:
        raise GrammarError("the text before a constrained span ends inside a character") from None
    option = "" if forcing else '%llguidance {"no_forcing": true}\n'
    inner = json.loads(source)["grammars"][0]
    outer = {"name": "outer", "lark_grammar": f"{option}start: {literal} @inner\n"}
    return json.dumps({"grammars": [outer, {**inner, "name": "inner"}]})


def _refusal(spec: GrammarSpec, message: str, audited: Audited | None) -> GrammarError:
    """llguidance's message, for a caller who does not know llguidance."""
    reason = next(
        (line[len("error: ") :] for line in message.splitlines() if line.startswith("error: ")),
        first_line(message),
    )
    for ours, theirs in _TRANSLATIONS:
        if theirs in reason:
            reason = ours
    return GrammarError(
        f"the {spec.kind} is refused: {reason}",
        where=audited.place(reason) if audited else None,
    )
