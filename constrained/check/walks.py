"""Random texts of a grammar, drawn from its masks, and a validator that knows nothing of it."""

from __future__ import annotations

import importlib
import json
import random
from decimal import Decimal
from typing import Any

import numpy as np

from stolon.constrained.masks import Mask
from stolon.constrained.matching import Grammar
from stolon.constrained.schema.drafts import DRAFTS, detect
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import InvalidRequest

__all__ = ["Oracle", "walk"]

LIMIT = 400
"""Tokens after which a text is given up."""
_STRUCTURE = frozenset(b'"{}[],:')
_CLASSES = {
    "draft-04": "Draft4Validator",
    "openapi-3.0": "Draft4Validator",
    "draft-06": "Draft6Validator",
    "draft-07": "Draft7Validator",
    "2019-09": "Draft201909Validator",
    "2020-12": "Draft202012Validator",
}


def walk(grammar: Grammar, vocabulary: Vocabulary, rng: random.Random) -> bytes | None:
    """A random text, with a bias towards structure that grows; None if it did not end in time."""
    matcher = grammar.start()
    text = b""
    for step in range(LIMIT):
        mask = matcher.mask()
        urge = 0.3 + step / LIMIT
        ending = matcher.accepting
        if ending and (mask.count <= len(vocabulary.eos_ids) or rng.random() < urge):
            return text
        token = _draw(mask, vocabulary, rng, urge)
        if token is None or not matcher.accept(token):
            return None
        text += vocabulary.token_bytes[token]
    return None


def _draw(mask: Mask, vocabulary: Vocabulary, rng: random.Random, urge: float) -> int | None:
    """An allowed id that does not end the text: some structure, or anything."""
    ids = _ids(mask, vocabulary.size)
    sample = [int(ids[rng.randrange(len(ids))]) for _ in range(24)] if len(ids) else []
    sample = [token for token in sample if token not in vocabulary.eos_ids]
    if len(ids) <= 64:
        sample = [int(token) for token in ids if int(token) not in vocabulary.eos_ids]
    elif rng.random() < urge:
        sample += [t for t in (_byte(vocabulary, b) for b in _STRUCTURE) if mask.allows(t)]
    structural = [t for t in sample if _STRUCTURE.issuperset(vocabulary.token_bytes[t])]
    plain = [t for t in sample if vocabulary.token_bytes[t].isascii()]
    if structural and rng.random() < urge:
        return rng.choice(structural)
    if plain and rng.random() < 0.9:
        return rng.choice(plain)
    return rng.choice(sample) if sample else None


def _ids(mask: Mask, size: int) -> Any:
    if mask.allow is not None:
        return mask.allow
    if mask.bits is not None:
        return np.flatnonzero(mask.bits)
    assert mask.deny is not None
    return np.setdiff1d(np.arange(size), mask.deny, assume_unique=True)


def _byte(vocabulary: Vocabulary, byte: int) -> int:
    """The token of a single byte, or any token where there is none."""
    found: list[int] = vocabulary.tokenizer.tokenize_bytes(bytes((byte,)))
    return found[0]


class Oracle:
    """Validates texts against a schema by the ``jsonschema`` package, in the schema's own draft.

    Raises:
        InvalidRequest: the package is not there.
    """

    def __init__(self, schema: Any, draft: str | None, documents: dict[str, Any]) -> None:
        try:
            jsonschema: Any = importlib.import_module("jsonschema")
            referencing: Any = importlib.import_module("referencing")
            drafts: Any = importlib.import_module("referencing.jsonschema")
        except ImportError:
            raise InvalidRequest(
                "random walks need the package jsonschema", hint="pip install jsonschema"
            ) from None
        address = schema.get("$schema") if isinstance(schema, dict) else None
        found = detect(address) if isinstance(address, str) else None
        name = found.name if found else draft
        cls = getattr(jsonschema, _CLASSES[name if name in DRAFTS else "2020-12"])
        default = drafts.DRAFT202012
        registry: Any = referencing.Registry().with_resources(
            (at, referencing.Resource.from_contents(value, default_specification=default))
            for at, value in documents.items()
        )
        schema = json.loads(json.dumps(schema), parse_float=_exact)
        self._validator = cls(schema, format_checker=cls.FORMAT_CHECKER, registry=registry)

    def judge(self, text: bytes) -> bool | None:
        """Whether a text is JSON and valid; None where the package can't tell."""
        try:
            value = json.loads(text.decode(), parse_float=_exact)
        except ValueError:
            return False
        except ArithmeticError:  # an exponent beyond all bounds
            return None
        try:
            return bool(self._validator.is_valid(value))
        except BaseException as error:
            # Patterns that Python does not read, references that it does not follow, and recursion
            # too deep for its Rust parts, whose PanicException is no Exception.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return None


def _exact(text: str) -> Decimal | int:
    """A number as it is written: in binary 0.4028 would be no multiple of 0.0001."""
    value = Decimal(text)
    return int(value) if value.adjusted() < 40 and value == value.to_integral_value() else value
