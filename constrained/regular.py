"""What an automaton can follow, as trees; and llguidance's form of regexes and choices."""

from __future__ import annotations

import json

import llguidance

from stolon.constrained.choices import choices_to_lark, parse_choices
from stolon.constrained.ebnf import ebnf_tree
from stolon.constrained.regex import parse_regex, to_rust
from stolon.constrained.regex_ast import Chars, Choice, Literal, Node, Repeat, Sequence, literal
from stolon.constrained.schema.plan import SchemaText
from stolon.constrained.schema.regular import schema_tree
from stolon.constrained.spec import GrammarSpec
from stolon.errors import GrammarError

__all__ = [
    "longest_text",
    "regular_source",
    "regular_tree",
    "release",
    "tree_source",
    "with_literal",
]


def regular_tree(spec: GrammarSpec, schema: SchemaText | None = None) -> Node | None:
    """The texts of a spec; None if it is of no kind that has a tree. Raises GrammarError.

    `schema` is the text of a JSON schema, if it has been read already.
    """
    match spec.kind:
        case "choice":
            return Choice(tuple(map(literal, parse_choices(spec.text))))
        case "regex":
            return parse_regex(spec.text)
        case "ebnf":
            return ebnf_tree(spec.text)
        case "json_schema":
            try:
                document = (schema or SchemaText(spec.text)).bundled().document
            except GrammarError:
                return None  # said again, with its place, by who translates any schema
            return schema_tree(document, spec.whitespace)
        case _:
            return None


def longest_text(spec: GrammarSpec) -> int | None:
    """The most bytes that a text of a spec has; None if there is no end to it, or it is not known."""
    if spec.after:
        return None
    try:
        tree = regular_tree(spec)
    except GrammarError:
        return None
    return None if tree is None else _longest(tree)


def _longest(node: Node) -> int | None:
    if isinstance(node, Chars):
        return len(chr(node.ranges[-1][1]).encode()) if node.ranges else 0
    if isinstance(node, Repeat):
        one = _longest(node.node)
        if one == 0 or node.high == 0:
            return 0
        return None if one is None or node.high is None else one * node.high
    found = [_longest(part) for part in _parts(node)]
    lengths = [length for length in found if length is not None]
    if len(lengths) < len(found):
        return None
    return sum(lengths) if isinstance(node, Sequence) else max(lengths, default=0)


def _parts(node: Sequence | Choice) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Sequence) else node.options


def regular_source(spec: GrammarSpec) -> str:
    """The same for llguidance. Raises GrammarError."""
    if spec.kind == "choice":
        return json.dumps(
            {"grammars": [{"lark_grammar": choices_to_lark(parse_choices(spec.text))}]}
        )
    return tree_source(parse_regex(spec.text))


def tree_source(tree: Node) -> str:
    """A tree as one regex of llguidance's."""
    return str(llguidance.LLMatcher.grammar_from_regex(to_rust(tree)))


def with_literal(prefix: bytes, tree: Node) -> Node:
    """The tree after a literal. Raises GrammarError if that ends inside a character."""
    try:
        return Sequence((literal(prefix.decode()), tree)) if prefix else tree
    except UnicodeDecodeError:
        raise GrammarError("the text before a constrained span ends inside a character") from None


def release(trees: list[Node]) -> None:
    """Free trees that nobody else holds, node by node: a large one at once holds up other threads."""
    while trees:
        node = trees.pop()
        if isinstance(node, Literal):
            continue
        if isinstance(node, Sequence):
            trees.extend(node.parts)
        elif isinstance(node, Choice):
            trees.extend(node.options)
        elif isinstance(node, Repeat):
            trees.append(node.node)
