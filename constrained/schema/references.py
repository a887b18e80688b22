"""Where references lead: documents, the resources inside them, their anchors (RFC 3986, RFC 6901).

A *resource* is a schema with an address of its own: the root of a document, and every schema in it
that has an ``$id``. References are resolved against the address of the resource they stand in.
Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from stolon.constrained.json_text import MAX_DEPTH, pointer
from stolon.constrained.schema.drafts import ANY_DRAFT, LISTS, MAPS, SINGLES, Draft, detect
from stolon.constrained.schema.uris import join
from stolon.errors import GrammarError

__all__ = ["Document", "Path", "Place", "References", "Resource", "locate"]

Path = tuple[str | int, ...]

_BASE = "schema:/"
"""The address of a caller's schema that has none, so that relative ids in it can be joined."""
_HOLDERS = MAPS | {"$defs", "definitions", "dependencies"}
_NAMING = ("$schema", "$id", "$anchor", "$dynamicAnchor")
MAX_SCHEMAS = 100_000


@dataclass(eq=False, slots=True)
class Resource:
    """A schema with an address.

    Attributes:
        base: absolute URI without a fragment.
        path: where it begins in its document.
        names: anchors, and the paths of the schemas that they name.
        dynamic: those of them that ``$dynamicRef`` may be overridden by.
        recursive: whether it carries ``$recursiveAnchor: true``.
        dialect: the address under ``$schema``, when it is no draft's own.
    """

    document: Document
    base: str
    path: Path
    draft: Draft
    names: dict[str, Path] = field(default_factory=dict)
    dynamic: dict[str, Path] = field(default_factory=dict)
    recursive: bool = False
    dialect: str | None = None


@dataclass(eq=False, slots=True)
class Document:
    """A JSON value with schemas in it. `label` is put before pointers in messages."""

    value: Any
    label: str
    resources: dict[Path, Resource] = field(default_factory=dict)

    def resource(self, path: Path) -> Resource:
        """The innermost resource around a place."""
        if len(self.resources) > 1:
            for length in range(len(path), 0, -1):
                if path[:length] in self.resources:
                    return self.resources[path[:length]]
        return self.resources[()]


class Place(NamedTuple):
    """One schema: the resource that it belongs to, its path in the document, and its value."""

    resource: Resource
    path: Path
    value: Any


def locate(document: Document, path: Path) -> str:
    """A JSON pointer for messages, with the document's address in front unless it is the caller's."""
    return (f"{document.label}#" if document.label else "") + pointer(path)


class References:
    """Resolves the references of one schema and of the documents given with it.

    Args:
        root: the caller's schema.
        documents: what else references may lead to, by address.
        draft: read schemas that don't say otherwise by this draft.
    """

    def __init__(self, root: Any, documents: Mapping[str, Any], draft: Draft | None) -> None:
        self._given = {address.rstrip("#"): value for address, value in documents.items()}
        self._resources: dict[str, Resource] = {}
        self._twice: set[str] = set()
        self._count = 0
        self._draft = draft or ANY_DRAFT
        self.root = self._index(root, _BASE, label="")
        self._draft = self.root.draft

    def resolve(self, resource: Resource, reference: str, where: str) -> tuple[Place, str | None]:
        """The target of a reference, and the anchor's name if it ends in one.

        Raises:
            GrammarError: `where` says which reference can't be followed.
        """
        address, _, encoded = reference.partition("#")
        target = self._find(resource, address, reference, where) if address else resource
        try:
            fragment = unquote(encoded, errors="strict")
        except UnicodeDecodeError:
            raise _nowhere(reference, where) from None
        if fragment and not fragment.startswith("/"):
            path = target.names.get(fragment)
            if path is None:
                raise _nowhere(reference, where)
            return self.place(target.document, path, reference, where), fragment
        path = target.path
        if fragment:
            parts = fragment[1:].split("/")
            path += tuple(p.replace("~1", "/").replace("~0", "~") for p in parts)
        return self.place(target.document, path, reference, where), None

    def place(self, document: Document, path: Path, reference: str, where: str) -> Place:
        """What a path leads to; digits in it may index arrays."""
        value, exact = document.value, list[str | int]()
        for part in path:
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and str(part).isdecimal() and int(part) < len(value):
                part = int(part)
                value = value[part]
            else:
                raise _nowhere(reference, where)
            exact.append(part)
        return Place(document.resource(tuple(exact)), tuple(exact), value)

    def dialect(self, resource: Resource) -> Any:
        """The metaschema of a resource that names one of its own, if it was given."""
        return self._given.get(resource.dialect.rstrip("#")) if resource.dialect else None

    def _find(self, resource: Resource, address: str, reference: str, where: str) -> Resource:
        try:
            full = join(resource.base, address)
        except ValueError:
            raise _nowhere(reference, where) from None
        if full in self._twice:
            raise GrammarError(
                f"the reference {reference[:80]!r} is ambiguous: two schemas have that address",
                where=where,
            )
        if full not in self._resources and full in self._given:
            self._index(self._given[full], full, label=full)
        found = self._resources.get(full)
        if found is None:
            shown = full if not full.startswith(_BASE) else address
            raise GrammarError(
                f"the reference {reference[:80]!r} leaves the schema"
                + (f" for {shown[:120]!r}" if shown != reference else ""),
                where=where,
                hint="put the schema under $defs and refer to it as #/$defs/NAME",
            )
        return found

    def _index(self, value: Any, address: str, *, label: str) -> Resource:
        """Enter a document: its resources by address, their anchors by name."""
        document = Document(value, label)
        root = Resource(document, address, (), self._draft)
        document.resources[()] = root
        self._resources[address] = root
        todo: list[tuple[Any, Path, Resource]] = [(value, (), root)]
        while todo:
            schema, path, resource = todo.pop()
            if not isinstance(schema, dict):
                continue
            self._count += 1
            if self._count > MAX_SCHEMAS or len(path) > 3 * MAX_DEPTH:
                raise GrammarError(
                    f"the schema has more than {MAX_SCHEMAS:,} parts or is nested too deep",
                    where=locate(document, path[:8]),
                )
            resource = self._enter(schema, path, resource)
            _read_anchors(schema, path, resource)
            for keyword, inner in schema.items():
                if keyword in SINGLES and isinstance(inner, dict):
                    todo.append((inner, (*path, keyword), resource))
                elif isinstance(inner, list) and (keyword in LISTS or keyword == "items"):
                    todo.extend((v, (*path, keyword, i), resource) for i, v in enumerate(inner))
                elif keyword in _HOLDERS and isinstance(inner, dict):
                    todo.extend((v, (*path, keyword, k), resource) for k, v in inner.items())
        return root

    def _enter(self, schema: dict[str, Any], path: Path, outer: Resource) -> Resource:
        """The resource that a schema begins, or the one around it."""
        draft, dialect = outer.draft, None
        _check_names(schema, outer.document, path)
        address = schema.get("$schema")
        if isinstance(address, str):
            found = detect(address)
            draft, dialect = found or draft, None if found else address
        hidden = draft.ref_alone and isinstance(schema.get("$ref"), str)
        id = None if hidden else schema.get(draft.id)
        base = id.partition("#")[0] if isinstance(id, str) else ""
        if path and not base:
            return outer
        resource = outer
        if path:
            resource = Resource(outer.document, outer.base, path, draft)
            outer.document.resources[path] = resource
        resource.draft, resource.dialect = draft, dialect
        resource.recursive = schema.get("$recursiveAnchor") is True
        if base:
            try:
                resource.base = join(outer.base, base)
            except ValueError:
                raise GrammarError(
                    f"{base[:80]!r} is no URI",
                    where=locate(outer.document, (*path, draft.id)),
                ) from None
            if self._resources.setdefault(resource.base, resource) is not resource:
                self._twice.add(resource.base)
        return resource


def _check_names(schema: dict[str, Any], document: Document, path: Path) -> None:
    for keyword in _NAMING:
        if not isinstance(schema.get(keyword, ""), str):
            raise GrammarError(
                f"{keyword!r} must be a string", where=locate(document, (*path, keyword))
            )


def _read_anchors(schema: dict[str, Any], path: Path, resource: Resource) -> None:
    draft = resource.draft
    if draft.anchors:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                resource.names.setdefault(name, path)
                if keyword == "$dynamicAnchor":
                    resource.dynamic.setdefault(name, path)
    id = schema.get(draft.id)
    if isinstance(id, str) and draft.name not in ("2019-09", "2020-12"):
        name = id.partition("#")[2]
        if name and not name.startswith("/"):
            resource.names.setdefault(name, path)


def _nowhere(reference: str, where: str) -> GrammarError:
    return GrammarError(f"the reference {reference[:80]!r} points at nothing", where=where)
