"""From terms to shapes: one level of a schema at a time, its children left as terms."""

from __future__ import annotations

from typing import Any

from stolon.constrained.json_text import pointer
from stolon.constrained.schema.algebra import Algebra
from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.keyword_shapes import Keywords
from stolon.constrained.schema.keywords import refusal
from stolon.constrained.schema.languages import Languages
from stolon.constrained.schema.pointers import look_up, resolve
from stolon.constrained.schema.shapes import Shape
from stolon.constrained.schema.terms import Path, Term, Terms
from stolon.errors import GrammarError

__all__ = ["Normaliser"]

MAX_DEPTH = 48


class _Circle(GrammarError):
    """A value would have to be known to find out what it may be."""


class Normaliser:
    """The shapes of one self-contained document whose references are JSON pointers into it."""

    def __init__(self, document: Any, budget: Budget) -> None:
        self.document = document
        self.budget = budget
        self.terms = Terms(budget)
        self.languages = Languages(budget)
        self.algebra = Algebra(self.terms, self.languages, budget, self.is_empty)
        self._shapes: dict[Term, Shape] = {}
        self._open: set[Term] = set()
        self.keywords = Keywords(self)

    # Terms

    def close(self) -> None:
        """Let go of everything. Its parts refer to each other, and what they hold would be left to the
        cyclic collector, which holds up other threads. The large tables go entry by entry: each of these
        is a place where others may run."""
        for table in (self._shapes, *self.terms.tables(), *self.languages.tables()):
            while table:
                table.popitem()
        self.__dict__.clear()

    def place(self, path: Path) -> Term:
        """The schema at a path, as a term."""
        schema = self.schema(path)
        if not isinstance(schema, (dict, bool)):
            raise refusal("a schema must be a JSON object or a boolean", path)
        if isinstance(schema, bool) or not schema:
            return self.terms.false if schema is False else self.terms.true
        if len(schema) == 1 and "$ref" in schema:
            target = self.resolve(schema["$ref"], (*path, "$ref"))
            if target != path and not self._is_reference(target):
                return self.place(target)
        if len(schema) == 1 and "const" in schema:
            return self.terms.const(schema["const"])
        if len(schema) == 1 and "not" in schema and isinstance(schema["not"], (dict, bool)):
            return self.terms.negate(self.place((*path, "not")))
        return self.terms.at(path)

    def _is_reference(self, path: Path) -> bool:
        schema = self.schema(path)
        return isinstance(schema, dict) and bool({"$ref", "not"} & schema.keys())

    def schema(self, path: Path) -> Any:
        """What the document has at a path that exists."""
        return look_up(self.document, path)

    def resolve(self, reference: str, path: Path) -> Path:
        """The path of a local reference's target."""
        return resolve(self.document, reference, path)

    def is_empty(self, term: Term) -> bool:
        """Whether it is certain that no value satisfies a term. Looks only one level deep."""
        if term.kind in ("all", "any") or (term.kind == "not" and term.args.kind == "at"):
            if term in self._open or len(self._open) > MAX_DEPTH:
                return False
            try:
                return self.algebra.is_nothing(self.shape(term))
            except _Circle:
                return False  # its shape is being worked out, and asks
        return term is self.terms.false

    def disjoint(self, a: Term, b: Term) -> bool:
        """Whether it is certain that no value satisfies both."""
        return self.is_empty(self.terms.all((a, b)))

    # Shapes

    def shape(self, term: Term) -> Shape:
        """The values that satisfy a term.

        Raises:
            GrammarError: a keyword can't be expressed, or references go round in a circle.
        """
        known = self._shapes.get(term)
        if known is not None:
            return known
        if term in self._open:
            where = pointer(term.args) if term.kind == "at" else None
            raise _Circle("references go round in a circle without an end", where=where)
        self._open.add(term)
        try:
            self._shapes[term] = found = self._shape(term)
        finally:
            self._open.discard(term)
        return found

    def _shape(self, term: Term) -> Shape:
        algebra = self.algebra
        match term.kind:
            case "true":
                return algebra.everything
            case "false":
                return algebra.nothing
            case "const":
                return self.keywords.constant(term.args)
            case "not":
                return algebra.complement(self.shape(term.args))
            case "any":
                return algebra.union(self.shape(t) for t in term.args)
            case "all":
                found = algebra.everything
                for part in term.args:
                    found = algebra.intersect(found, self.shape(part))
                return found
            case _:
                return self._schema_shape(term.args)

    def _schema_shape(self, path: Path) -> Shape:
        schema = self.schema(path)
        if isinstance(schema, bool):
            return self.algebra.everything if schema else self.algebra.nothing
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            from stolon.constrained.schema.evaluated import Evaluation

            return Evaluation(self).shape(path)
        found = self.keywords.shape(schema, path)
        for term in self.applied(schema, path, found):
            found = self.algebra.intersect(found, self.shape(term))
        return found

    def applied(self, schema: dict[str, Any], path: Path, base: Shape) -> list[Term]:
        """Terms of the keywords that apply schemas to the same value, which is known to be in `base`."""
        terms, every, either = self.terms, self.terms.all, self.terms.any
        found: list[Term] = []
        for keyword in schema:
            here = (*path, keyword)
            if keyword == "$ref":
                found.append(self.place(self.resolve(schema[keyword], here)))
            elif keyword == "allOf":
                found.extend(self.branches(here))
            elif keyword == "anyOf":
                found.append(either(self.branches(here)))
            elif keyword == "oneOf":
                found.append(self.one_of(self.branches(here), base))
            elif keyword == "not":
                found.append(terms.negate(self.place(here)))
            elif keyword == "if" and ("then" in schema or "else" in schema):
                test, then, other = self.conditional(schema, path)
                found.append(either((every((test, then)), every((terms.negate(test), other)))))
        return found

    def conditional(self, schema: dict[str, Any], path: Path) -> tuple[Term, Term, Term]:
        """Terms of ``if``, ``then`` and ``else``."""
        true = self.terms.true
        return (
            self.place((*path, "if")),
            self.place((*path, "then")) if "then" in schema else true,
            self.place((*path, "else")) if "else" in schema else true,
        )

    def branches(self, path: Path) -> list[Term]:
        """Terms of an array of schemas."""
        return [self.place((*path, i)) for i in range(len(self.schema(path)))]

    def one_of(self, branches: list[Term], base: Shape) -> Term:
        """Exactly one: each branch without those it may overlap with inside `base`."""
        terms, algebra = self.terms, self.algebra
        inside = [algebra.intersect(base, self.shape(term)) for term in branches]
        clash: list[list[int]] = [[] for _ in branches]
        for i in range(len(branches)):
            for j in range(i):
                if not algebra.disjoint(inside[i], inside[j]):
                    clash[i].append(j)
                    clash[j].append(i)
        return terms.any(
            terms.all((term, *(terms.negate(branches[j]) for j in clash[i])))
            for i, term in enumerate(branches)
        )
