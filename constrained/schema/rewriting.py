"""Writes every schema that takes part anew, in the keywords of 2020-12, with references that are pointers.

A place that ``$dynamicRef`` or ``$recursiveRef`` makes mean different things on different ways to it
is written once for each meaning: a meaning is the place together with what each dynamic anchor is
bound to, so there are finitely many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stolon.constrained.json_text import MAX_DEPTH, pointer
from stolon.constrained.schema.drafts import (
    KNOWN,
    LISTS,
    MAPS,
    SINGLES,
    Draft,
    detect,
    respell,
)
from stolon.constrained.schema.references import Path, Place, References, Resource, locate
from stolon.constrained.schema.vocabularies import without_meaning
from stolon.errors import GrammarError

__all__ = ["Rewriter"]

MAX_SCHEMAS = 50_000
_RECURSIVE = "$recursiveAnchor"  # no anchor's name begins with $
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDENTITY = frozenset(
    (
        *("$id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
        *("$defs", "definitions"),
    )
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Bindings = frozenset[tuple[str, Path, int]]


class _Target(NamedTuple):
    """A place and its meaning, which becomes one definition of the result."""

    place: Place
    bindings: Bindings
    name: str


@dataclass(slots=True)
class Rewriter:
    references: References
    names: dict[tuple[int, Path, Bindings], str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    todo: list[_Target] = field(default_factory=list)
    origin: dict[str, str] = field(default_factory=dict)
    places: dict[int, Resource] = field(default_factory=dict)
    count: int = 0
    seen_2019: dict[str, str] = field(default_factory=dict)

    def run(self) -> tuple[Any, dict[str, str]]:
        """The document, and for pointers into it where they came from."""
        root = self.references.root
        start = Place(root, (), root.document.value)
        bindings = self.enter(root, frozenset())
        self.names[id(root.document), (), bindings] = ""
        result = self.schema(start, (), bindings)
        definitions: dict[str, Any] = {}
        while self.todo:
            target = self.todo.pop()
            new = ("$defs", target.name)
            definitions[target.name] = self.schema(target.place, new, target.bindings)
        if isinstance(result, dict) and definitions:
            result["$defs"] = definitions
        self.refuse_circles(result, definitions)
        if len(self.seen_2019) == 2:
            raise GrammarError(
                "'unevaluatedItems' with 'contains' in one schema of draft 2019-09 is not supported",
                where=self.seen_2019["unevaluatedItems"],
                hint="in 2020-12 items that 'contains' matches count as evaluated, in 2019-09 not",
            )
        return result, self.origin

    def enter(self, resource: Resource, bindings: Bindings) -> Bindings:
        """The bindings inside a resource: the outermost resource that has an anchor binds it."""
        own = dict(resource.dynamic)
        if resource.recursive:
            own[_RECURSIVE] = resource.path
        if not own:
            return bindings
        bound = {name for name, _, _ in bindings}
        key = id(resource.document)
        self.places[key] = resource
        return bindings | {(n, path, key) for n, path in own.items() if n not in bound}

    def schema(self, place: Place, new: Path, bindings: Bindings) -> Any:
        """The schema at a place, with `new` as its path in the result."""
        resource, path, value = place
        self.origin[pointer(new)] = locate(resource.document, path)
        if not isinstance(value, dict):
            return value
        self.count += 1
        if self.count > MAX_SCHEMAS or len(new) > 2 * MAX_DEPTH:
            raise GrammarError(
                f"with its references resolved the schema has more than {MAX_SCHEMAS:,} parts "
                "or is nested too deep",
                where=locate(resource.document, path[:8]),
            )
        draft = self.draft(resource)
        if draft.ref_alone and isinstance(value.get("$ref"), str):
            return {"$ref": self.reference("$ref", place, bindings)}
        skipped = without_meaning(self.references.dialect(resource), locate(resource.document, ()))
        out: dict[str, Any] = {}
        more: list[Any] = []  # what must hold beside `out`, for want of a second keyword of a name
        for keyword, inner in value.items():
            if keyword in _IDENTITY or (keyword == draft.id and isinstance(inner, str)):
                continue
            if keyword in KNOWN and (keyword not in draft.keywords or keyword in skipped):
                continue
            if keyword in _REFERENCES and isinstance(inner, str):
                target = {"$ref": self.reference(keyword, place, bindings)}
                if "$ref" in out:
                    more.append(target)
                else:
                    out.update(target)
            elif keyword == "dependencies" and isinstance(inner, dict):
                more.append(self.dependencies(inner, place, new, bindings))
            else:
                self.keyword(out, keyword, place, new, bindings)
        for extra in more:
            if out.keys().isdisjoint(extra):
                out.update(extra)
            elif isinstance(out.setdefault("allOf", []), list):
                out["allOf"].append(extra)
        respell(out, draft)
        return out

    def draft(self, resource: Resource) -> Draft:
        metaschema = self.references.dialect(resource)
        if isinstance(metaschema, dict) and isinstance(metaschema.get("$schema"), str):
            return detect(metaschema["$schema"]) or resource.draft
        return resource.draft

    def keyword(
        self, out: dict[str, Any], keyword: str, place: Place, new: Path, bindings: Bindings
    ) -> None:
        """One keyword that is neither a reference nor part of a schema's name."""
        inner, path = place.value[keyword], (*place.path, keyword)
        draft = place.resource.draft
        if keyword in ("contains", "unevaluatedItems") and draft.name == "2019-09":
            self.seen_2019[keyword] = locate(place.resource.document, path)
        if keyword == "items" and isinstance(inner, list) and draft.tuples:
            if inner:
                at = (*new, "prefixItems")
                self.origin[pointer(at)] = locate(place.resource.document, path)
                out["prefixItems"] = self.array(place, path, inner, at, bindings)
            if "additionalItems" in place.value:
                rest = (*place.path, "additionalItems")
                out["items"] = self.child(
                    place, rest, place.value["additionalItems"], (*new, "items"), bindings
                )
        elif keyword == "additionalItems":
            pass
        elif keyword in MAPS and isinstance(inner, dict):
            out[keyword] = {
                name: self.child(place, (*path, name), value, (*new, keyword, name), bindings)
                for name, value in inner.items()
            }
        elif keyword in LISTS and isinstance(inner, list):
            out[keyword] = self.array(place, path, inner, (*new, keyword), bindings)
        elif keyword in SINGLES:
            out[keyword] = self.child(place, path, inner, (*new, keyword), bindings)
        else:
            out[keyword] = inner

    def array(
        self, outer: Place, path: Path, values: list[Any], new: Path, bindings: Bindings
    ) -> list[Any]:
        return [
            self.child(outer, (*path, i), value, (*new, i), bindings)
            for i, value in enumerate(values)
        ]

    def dependencies(
        self, values: dict[str, Any], place: Place, new: Path, bindings: Bindings
    ) -> dict[str, Any]:
        """``dependencies`` of the drafts before 2019-09 as its two successors."""
        out: dict[str, Any] = {}
        for name, value in values.items():
            path = (*place.path, "dependencies", name)
            kind = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
            at = (*new, kind, name)
            self.origin[pointer(at[:-1])] = locate(place.resource.document, path[:-1])
            out.setdefault(kind, {})[name] = (
                value if isinstance(value, list) else self.child(place, path, value, at, bindings)
            )
        return out

    def child(self, outer: Place, path: Path, value: Any, new: Path, bindings: Bindings) -> Any:
        resource = outer.resource.document.resources.get(path)
        if resource is None:
            return self.schema(Place(outer.resource, path, value), new, bindings)
        return self.schema(Place(resource, path, value), new, self.enter(resource, bindings))

    def reference(self, keyword: str, place: Place, bindings: Bindings) -> str:
        """The pointer that stands for a reference; its target is put on the list of definitions."""
        resource, document = place.resource, place.resource.document
        asked, where = place.value[keyword], locate(document, (*place.path, keyword))
        target, anchor = self.references.resolve(resource, asked, where)
        bound: str | None = None
        if keyword == "$dynamicRef" and anchor and anchor in target.resource.dynamic:
            bound = anchor
        if keyword == "$recursiveRef" and target.path == target.resource.path:
            bound = _RECURSIVE if target.resource.recursive else None
        for anchor, path, key in bindings if bound else ():
            if anchor == bound:
                target = self.references.place(self.places[key].document, path, asked, where)
        name = self.name(target, self.enter(target.resource, bindings))
        return f"#/$defs/{name}" if name else "#"

    def name(self, target: Place, bindings: Bindings) -> str:
        """The name under ``$defs`` of a place with its meaning; the root's is empty."""
        key = (id(target.resource.document), target.path, bindings)
        known = self.names.get(key)
        if known is not None:
            return known
        last = str(target.path[-1]) if target.path else target.resource.base.rpartition("/")[2]
        stem = last if _PLAIN_NAME.fullmatch(last) else "schema"
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}_{number}"
        self.taken.add(name)
        self.names[key] = name
        self.todo.append(_Target(target, bindings, name))
        return name

    def refuse_circles(self, result: Any, definitions: dict[str, Any]) -> None:
        """Refuse references that lead to each other and to nothing else."""
        settled: set[str] = set()
        for start in ("", *definitions):
            chain: list[str] = []
            name: str | None = start
            while name is not None and name not in settled and name not in chain:
                chain.append(name)
                schema = definitions.get(name) if name else result
                reference = schema.get("$ref") if isinstance(schema, dict) else None
                name = reference.rpartition("/")[2].lstrip("#") if reference else None
            if name is not None and name in chain:
                at = self.origin["/$defs/" + name if name else "/"].rstrip("/") + "/$ref"
                raise GrammarError("the references lead in a circle", where=at)
            settled.update(chain)
