"""The names of an object's members: those told apart one by one, and classes of all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stolon.constrained.schema.language import Language
from stolon.constrained.schema.normaliser import Normaliser
from stolon.constrained.schema.shapes import ObjectShape
from stolon.constrained.schema.terms import Term
from stolon.errors import GrammarError

__all__ = ["Names"]

MAX_GENERATORS = 16
MAX_CLASSES = 128
MAX_WORDS = 64


class Names:
    """Looks at the names of object shapes."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._n = normaliser

    def known(self, member: ObjectShape) -> list[str]:
        """The names that are told apart, those with a schema first."""
        found = dict.fromkeys((*member.order, *member.mentioned))
        found.update(dict.fromkeys(sorted({n for c in member.clauses for n, _ in c})))
        for language in (*(r for r, _ in member.rules), *(w for w, _ in member.witnesses)):
            for leaf in (language,) if language.kind == "words" else _leaves(language):
                words = leaf.words
                if words is not None and len(words) <= MAX_WORDS:
                    found.update(dict.fromkeys(sorted(words) if len(words) > 1 else words))
        return list(found)

    def others(self, member: ObjectShape, names: list[str]) -> list[tuple[Language, Term]]:
        """All other names, split by the rules that apply to them; classes without a value left out."""
        languages, terms = self._n.languages, self._n.terms
        known = set(names)
        generators: dict[Language, None] = {}
        for language, _ in member.rules:
            for leaf in (language,) if language.kind == "words" else _leaves(language):
                words = leaf.words
                if words is None or not words <= known:
                    generators[leaf] = None
        if len(generators) > MAX_GENERATORS:
            raise GrammarError("an object has too many patterns of names")
        others = languages.complement(languages.words(names))
        classes: list[tuple[Language, dict[Language, bool]]] = [(others, {})]
        for generator in generators:
            grown = []
            for language, holds in classes:
                for yes in (True, False):
                    side = generator if yes else languages.complement(generator)
                    part = languages.intersection((language, side))
                    if languages.is_empty(part) is not True:
                        grown.append((part, {**holds, generator: yes}))
            classes = grown
            if len(classes) > MAX_CLASSES:
                raise GrammarError("an object has too many overlapping patterns of names")
        merged: dict[Term, list[Language]] = {}
        for language, holds in classes:
            value = terms.all(t for rule, t in member.rules if _holds(rule, holds))
            if not self._n.is_empty(value):
                merged.setdefault(value, []).append(language)
        if len(classes) == 1 and len(merged) == 1:
            return [(others, next(iter(merged)))]
        if len(merged) == 1 and len(classes) == sum(map(len, merged.values())):
            return [(others, next(iter(merged)))]
        return [(languages.union(parts), value) for value, parts in merged.items()]

    def narrowed(
        self, classes: Iterable[tuple[Language, Term]], witness: tuple[Language, Term] | None
    ) -> list[tuple[Language, Term]]:
        """The classes whose members can also be a witness, narrowed to it."""
        if witness is None:
            return []
        language, term = witness
        found = []
        for names, value in classes:
            both = self._n.languages.intersection((names, language))
            inner = self._n.terms.all((value, term))
            if self._n.languages.is_empty(both) is not True and not self._n.is_empty(inner):
                found.append((both, inner))
        return found


def _leaves(language: Language) -> Iterator[Language]:
    """The languages that a boolean combination is made of."""
    todo = [language]
    while todo:
        one = todo.pop()
        if one.kind == "not":
            todo.append(one.args[0])
        elif one.kind in ("and", "or"):
            todo.extend(one.args[0])
        else:
            yield one


def _holds(language: Language, holds: dict[Language, bool]) -> bool:
    """Whether a rule applies to a class of names, given which leaves do; known names do not."""
    match language.kind:
        case "not":
            return not _holds(language.args[0], holds)
        case "and":
            return all(_holds(part, holds) for part in language.args[0])
        case "or":
            return any(_holds(part, holds) for part in language.args[0])
        case _:
            return holds.get(language, False)
