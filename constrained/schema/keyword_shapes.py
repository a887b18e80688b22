"""The shape of what one schema's keywords say of a value itself, its children left as terms."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from stolon.constrained.regex_parser import parse_ecma_search
from stolon.constrained.schema.formats import (
    ENFORCED_FORMATS,
    STANDARD_FORMATS,
    format_pattern,
    format_tree,
)
from stolon.constrained.schema.keywords import MAX_COUNT, check_keywords, count, refusal
from stolon.constrained.schema.language import Language
from stolon.constrained.schema.numbers import Numbers, both
from stolon.constrained.schema.shapes import ArrayShape, Clause, Count, ObjectShape, Shape
from stolon.constrained.schema.terms import Path, Term
from stolon.errors import GrammarError

if TYPE_CHECKING:
    from stolon.constrained.schema.normaliser import Normaliser

__all__ = ["Keywords"]


class Keywords:
    """Reads schemas for a `Normaliser`."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._n = normaliser
        self._patterns: dict[str, Language] = {}
        self._formats: dict[str, Language] = {}

    def shape(self, schema: dict[str, Any], path: Path) -> Shape:
        """What the keywords say that look at the value itself and at its children."""
        check_keywords(schema, path)
        self._n.budget.spend(len(schema))
        whole = self._n.algebra.everything
        names = schema.get("type")
        types = set(names if isinstance(names, list) else [names]) if names is not None else None
        found = Shape(
            null=types is None or "null" in types,
            booleans=whole.booleans if types is None or "boolean" in types else frozenset(),
            numbers=self._numbers(schema, types),
            strings=self._strings(schema, path, types),
            arrays=self._arrays(schema, path, types),
            objects=self._objects(schema, path, types),
        )
        for keyword in ("const", "enum"):
            if keyword in schema:
                values = schema[keyword] if keyword == "enum" else [schema[keyword]]
                listed = self._n.algebra.union([self.constant(v) for v in values])
                found = self._n.algebra.intersect(found, listed)
        if "dependentSchemas" in schema and found.objects:
            for name in schema["dependentSchemas"]:
                found = self._n.algebra.intersect(found, self.dependent(path, name))
        return found

    def dependent(self, path: Path, name: str) -> Shape:
        """``dependentSchemas`` for one name."""
        then = self._n.shape(self._n.place((*path, "dependentSchemas", name)))
        return self._n.algebra.union(
            (
                self.presence(name, False),
                self._n.algebra.intersect(self.presence(name, True), then),
            )
        )

    def presence(self, name: str, yes: bool) -> Shape:
        """Objects with (or without) a name; without, any other value too."""
        unit = frozenset((frozenset(((name, yes),)),))
        objects = (ObjectShape(clauses=unit, mentioned=(name,)),)
        whole = self._n.algebra.everything
        if yes:
            return Shape(strings=self._n.languages.nothing, objects=objects)
        return Shape(
            null=True,
            booleans=whole.booleans,
            numbers=whole.numbers,
            strings=whole.strings,
            arrays=whole.arrays,
            objects=objects,
        )

    def constant(self, value: Any) -> Shape:
        """Exactly one value."""
        const, nothing = self._n.terms.const, self._n.languages.nothing
        if value is None:
            return Shape(strings=nothing, null=True)
        if isinstance(value, bool):
            return Shape(strings=nothing, booleans=frozenset((value,)))
        if isinstance(value, (int, float)):
            point = Fraction(str(value))
            return Shape(strings=nothing, numbers=(Numbers(low=point, high=point),))
        if isinstance(value, str):
            return Shape(strings=self._n.languages.words((value,)))
        if isinstance(value, list):
            array = ArrayShape(
                prefix=tuple(const(v) for v in value),
                rest=self._n.terms.false,
                low=len(value),
                high=len(value),
            )
            return Shape(strings=nothing, arrays=(array,))
        words = self._n.languages.words
        rules = [(words((name,)), const(item)) for name, item in value.items()]
        rules.append((self._n.languages.complement(words(value)), self._n.terms.false))
        member = ObjectShape(
            rules=tuple(rules),
            clauses=frozenset(frozenset(((name, True),)) for name in value),
            order=tuple(value),
        )
        return Shape(strings=nothing, objects=(member,))

    def _numbers(self, schema: dict[str, Any], types: set[str] | None) -> tuple[Numbers, ...]:
        if types is not None and not types & {"number", "integer"}:
            return ()
        low = high = step = None
        low_open = high_open = False
        for keyword, exclusive in (("minimum", False), ("exclusiveMinimum", True)):
            if keyword in schema:
                bound = Fraction(str(schema[keyword]))
                if low is None or (bound, exclusive) > (low, low_open):
                    low, low_open = bound, exclusive
        for keyword, exclusive in (("maximum", False), ("exclusiveMaximum", True)):
            if keyword in schema:
                bound = Fraction(str(schema[keyword]))
                if high is None or (bound, not exclusive) < (high, not high_open):
                    high, high_open = bound, exclusive
        if "multipleOf" in schema:
            step = Fraction(str(schema["multipleOf"]))
        given = Numbers(low=low, high=high, low_open=low_open, high_open=high_open, step=step)
        if types is None or "number" in types:
            return tuple(given.simplified())
        return tuple(both(given, Numbers(step=Fraction(1))))

    def _strings(self, schema: dict[str, Any], path: Path, types: set[str] | None) -> Language:
        if types is not None and "string" not in types:
            return self._n.languages.nothing
        parts: list[Language] = []
        if "minLength" in schema or "maxLength" in schema:
            low, high = _bounds(schema, path, "Length")
            if high is not None and high < low:
                return self._n.languages.nothing
            parts.append(self._n.languages.length(low, high))
        if "pattern" in schema:
            parts.append(self.pattern(schema["pattern"], (*path, "pattern")))
        if "format" in schema:
            parts.extend(self._format(schema["format"], (*path, "format")))
        return self._n.languages.intersection(parts)

    def _format(self, name: str, path: Path) -> list[Language]:
        if name not in STANDARD_FORMATS:
            return []
        if name not in ENFORCED_FORMATS:
            raise refusal(
                f"the format {name!r} is not supported",
                path,
                f"known are {', '.join(sorted(ENFORCED_FORMATS))}; or use 'pattern'",
            )
        if name not in self._formats:
            self._formats[name] = self._n.languages.tree(format_tree(name))
        longest = format_pattern(name)[1]
        bound = [] if longest is None else [self._n.languages.length(0, longest)]
        return [self._formats[name], *bound]

    def pattern(self, pattern: str, path: Path) -> Language:
        """Strings in which a pattern is found."""
        if pattern not in self._patterns:
            try:
                tree = parse_ecma_search(pattern)
            except GrammarError as error:
                raise refusal(error.message, path, error.hint) from None
            self._patterns[pattern] = self._n.languages.tree(tree)
        return self._patterns[pattern]

    def _arrays(
        self, schema: dict[str, Any], path: Path, types: set[str] | None
    ) -> tuple[ArrayShape, ...]:
        if types is not None and "array" not in types:
            return ()
        low, high = _bounds(schema, path, "Items")
        counts: tuple[Count, ...] = ()
        if "contains" in schema:
            least, most = _bounds({"minContains": 1, **schema}, path, "Contains")
            counts = (Count(0, self._n.place((*path, "contains")), least, most),)
        array = ArrayShape(
            prefix=tuple(self._n.branches((*path, "prefixItems")))
            if "prefixItems" in schema
            else (),
            rest=self._n.place((*path, "items")) if "items" in schema else self._n.terms.true,
            low=low,
            high=high,
            counts=counts,
            unique=True if schema.get("uniqueItems") else None,
        )
        return tuple(self._n.algebra.arrays.tightened(array))

    def _objects(
        self, schema: dict[str, Any], path: Path, types: set[str] | None
    ) -> tuple[ObjectShape, ...]:
        if types is not None and "object" not in types:
            return ()
        words, named = self._n.languages.words, schema.get("properties", {})
        mentioned = dict.fromkeys(schema.get("required", ()))
        rules = [(words((n,)), self._n.place((*path, "properties", n))) for n in named]
        patterns = [
            (self.pattern(p, (*path, "patternProperties", p)), p)
            for p in schema.get("patternProperties", {})
        ]
        rules.extend(
            (language, self._n.place((*path, "patternProperties", p))) for language, p in patterns
        )
        if "additionalProperties" in schema:
            known = self._n.languages.union((words(named), *(language for language, _ in patterns)))
            rules.append(
                (
                    self._n.languages.complement(known),
                    self._n.place((*path, "additionalProperties")),
                )
            )
        if "propertyNames" in schema:
            allowed = self._n.shape(self._n.place((*path, "propertyNames"))).strings
            rules.append((self._n.languages.complement(allowed), self._n.terms.false))
            listed = self._n.schema((*path, "propertyNames"))
            if isinstance(listed, dict) and isinstance(listed.get("enum"), list):
                mentioned.update(dict.fromkeys(n for n in listed["enum"] if isinstance(n, str)))
        merged: dict[Language, Term] = {}
        for language, term in rules:
            merged[language] = self._n.terms.all((merged.get(language, self._n.terms.true), term))
        clauses: set[Clause] = {frozenset(((n, True),)) for n in schema.get("required", ())}
        for name, needed in schema.get("dependentRequired", {}).items():
            clauses.update(frozenset(((name, False), (n, True))) for n in needed if n != name)
            mentioned.update(dict.fromkeys((*needed, name)))  # what others need comes first
        low, high = _bounds(schema, path, "Properties")
        member = ObjectShape(
            rules=tuple((x, t) for x, t in merged.items()),
            clauses=frozenset(clauses),
            low=low,
            high=high,
            order=tuple(named),
            mentioned=tuple(mentioned),
        )
        return tuple(self._n.algebra.objects.solved(member))


def _bounds(schema: dict[str, Any], path: Path, what: str) -> tuple[int, int | None]:
    low = count(schema.get(f"min{what}", 0), (*path, f"min{what}"))
    high = schema.get(f"max{what}")
    if high is None or high > MAX_COUNT:
        return low, None
    return low, count(high, (*path, f"max{what}"))
