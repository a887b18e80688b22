"""What one grammar may cost, and which specs are tried in another process before they are compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass

import llguidance

from stolon.constrained.spec import GrammarSpec
from stolon.errors import GrammarError

__all__ = ["CompileLimits", "check_size", "is_costly", "is_costly_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """What one grammar may cost. Beyond it, it is refused when compiled, or fails while it runs.

    Attributes:
        text_bytes: UTF-8 size of a JSON schema, a list of choices or a structural tag.
        pattern_bytes: UTF-8 size of a regex, EBNF or Lark text.
        prefix_bytes: size of the literal prefix, and of what ends free text before a grammar.
        grammar_size: symbols in the productions.
        lexer_fuel: work to build the lexer; about 50,000 per ms.
        step_fuel: lexer work for one mask; about 14,000 per ms.
        step_items: parser items for one mask; about 20,000 per ms.
        row_items: parser items at one byte, the breadth of ambiguity.
        lexer_states: states of the lexer, 1-2 KB each.
        trial_cpu: seconds of processor time for a costly spec.
        trial_wall: seconds until a trial is given up, however little it got of a busy machine.
        trial_bytes: memory that a trial may add to its process.
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
    trial_cpu: float = 0.8
    trial_wall: float = 1.6
    trial_bytes: int = 256 << 20

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


def check_size(spec: GrammarSpec, prefix: bytes, limits: CompileLimits) -> None:
    """Refuse text that is too long, or has no UTF-8 form. Raises GrammarError."""
    size = _bytes(spec.text, f"{spec.kind} text")
    whole = spec.kind in ("json_schema", "choice", "structural_tag")
    bound = limits.text_bytes if whole else limits.pattern_bytes
    if size > bound:
        raise GrammarError(
            f"the {spec.kind} text has {size:,} bytes", hint=f"the limit is {bound:,}"
        )
    if spec.kind == "json_object" and spec.text:
        raise GrammarError("json_object takes no text", hint="use json_schema for a schema")
    lengths = {"prefix": len(prefix), "after": _bytes(spec.after, "after text", param="after")}
    for name, length in lengths.items():
        if length > limits.prefix_bytes:
            raise GrammarError(
                f"the {name} text has {length:,} bytes",
                param=name,
                hint=f"the limit is {limits.prefix_bytes:,}",
            )


def _bytes(text: str, name: str, param: str | None = None) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise GrammarError(f"the {name} holds half of a surrogate pair", param=param) from None


# A longer text is costly by its length alone. Nine of ten schemas in use are shorter than 6 kB.
_PLAIN_SIZE = {
    "choice": 32_768,
    "regex": 4_096,
    "json_object": 0,
    "json_schema": 262_144,
    "ebnf": 2_048,
    "lark": 2_048,
    "structural_tag": 16_384,
}
# Keywords that multiply what others say, and counted repetitions and the algebra of terminals.
_PRODUCT = re.compile(r'"(?:allOf|oneOf|not|if|unevaluated\w+|contains|dependen\w+)"\s*:')
MAX_PRODUCTS = 16
MAX_SOURCE = 131_072


def is_costly(spec: GrammarSpec) -> bool:
    """Whether a spec may take long: a guess from its text alone, in far less time than reading it."""
    if len(spec.text) > _PLAIN_SIZE[spec.kind]:
        return True
    if spec.kind == "structural_tag":
        return len(_PRODUCT.findall(spec.text)) > MAX_PRODUCTS or spec.text.count("multipleOf") > 1
    if spec.kind in ("ebnf", "lark"):
        return any(sign in spec.text for sign in "{~&")
    return False


def is_costly_source(source: str) -> bool:
    """Whether llguidance may take long over what became of a JSON schema."""
    return len(source) > MAX_SOURCE or len(_PRODUCT.findall(source)) > MAX_PRODUCTS
