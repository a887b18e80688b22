"""Constraints that another program's server enforces: in its notation, and its answers checked.

Servers leave out what they do not know of a schema or a pattern, some of them without a word. What they
answer is therefore looked at here, by the same grammars that the engine enforces.
"""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import msgspec

from stolon.constrained import Grammar, GrammarCompiler, GrammarSpec, Vocabulary
from stolon.constrained.gbnf import to_gbnf as _tree_to_gbnf
from stolon.constrained.regular import regular_tree
from stolon.errors import GrammarError

_EOS = 256
_MAX_REASON_CHARS = 200


def to_gbnf(spec: GrammarSpec) -> str:
    """The spec in GBNF, exactly. Raises GrammarError if it has no such form."""
    tree = regular_tree(spec)
    if tree is None:
        raise GrammarError(f"this {spec.kind} can't be written as a GBNF grammar")
    return _tree_to_gbnf(tree)


class AnswerCheck:
    """Whether texts are what a spec says. Thread-safe."""

    def __init__(self) -> None:
        self._compiler: GrammarCompiler | None = None
        self._validators: dict[str, Any] = {}
        self._lock = threading.Lock()

    def prepare(self, spec: GrammarSpec) -> None:
        """Raise GrammarError for a spec that can't be checked; it is refused before it is sent."""
        if spec.kind == "json_schema":
            self._validator(spec.text)
        elif spec.kind != "json_object":
            self._grammar(spec)

    def violation(self, spec: GrammarSpec, text: str, *, cut: bool = False) -> str | None:
        """What is wrong with a text, None if nothing is. It may end early if something may have cut it."""
        if spec.kind in ("json_schema", "json_object"):
            return self._json(spec, text, cut)
        matcher = self._grammar(spec).start()
        for at, byte in enumerate(data := text.encode()):
            if not matcher.accept(byte):
                return f"nothing may follow {_shown(data[:at])} with {_shown(data[at : at + 20])}"
        return None if matcher.accepting or cut else "it ends too early"

    def _grammar(self, spec: GrammarSpec) -> Grammar:
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(_bytes())
        return self._compiler.compile(spec)

    def _json(self, spec: GrammarSpec, text: str, cut: bool) -> str | None:
        try:
            value = msgspec.json.decode(text.encode())
        except (msgspec.MsgspecError, RecursionError) as error:
            if cut and "truncated" in str(error):
                return None
            return f"it is not JSON: {str(error)[:_MAX_REASON_CHARS]}"
        if spec.kind == "json_object":
            return None if isinstance(value, dict) else "it is not a JSON object"
        return _first_error(self._validator(spec.text), value)

    def _validator(self, text: str) -> Any:
        """Validator of a schema. It loads nothing from anywhere."""
        validator = self._validators.get(text)
        if validator is None:
            from jsonschema import Draft202012Validator, SchemaError
            from jsonschema.validators import validator_for
            from referencing import Registry

            try:
                schema = json.loads(text)
                kind = validator_for(schema, default=Draft202012Validator)
                kind.check_schema(schema)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"the schema is not valid JSON: {error}") from None
            except SchemaError as error:
                raise GrammarError(
                    f"the schema is not valid: {error.message[:_MAX_REASON_CHARS]}",
                    where="/" + "/".join(map(str, error.absolute_path)),
                ) from None
            validator = kind(schema, registry=Registry())
            _first_error(validator, None)
            with self._lock:
                if len(self._validators) >= 256:
                    self._validators.pop(next(iter(self._validators)))
                self._validators[text] = validator
        return validator


def _first_error(validator: Any, value: Any) -> str | None:
    """The error that says most. Raises GrammarError where the schema can't be followed."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        wrong = best_match(validator.iter_errors(value))
    except (Unresolvable, RecursionError, re.error) as error:
        raise GrammarError(
            f"answers can't be checked against the schema: {str(error)[:_MAX_REASON_CHARS]}"
        ) from error
    return None if wrong is None else f"{wrong.message[:_MAX_REASON_CHARS]} at {wrong.json_path}"


def _bytes() -> Vocabulary:
    """One token for each byte, and an end."""
    return Vocabulary(
        [bytes([i]) for i in range(256)] + [b"<end>"],
        frozenset({_EOS}),
        frozenset({_EOS}),
        lambda text: list(text.encode()),
    )


def _shown(data: bytes) -> str:
    return repr(data[-40:].decode("utf-8", "replace"))
