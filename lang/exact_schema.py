"""JSON schemas of Python types that describe no text which is not in the type.

pydantic's own are wider in places: any string is a Decimal to them, any key one of a dict[int, str]. What
can be said exactly is said here; what can't is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

_WHOLE = "(0|[1-9][0-9]*)"
_NUMBER = r"[0-9]{1,15}(\.[0-9]{1,15})?(e[-+][0-9]{1,2})?"
_CLOCK = (
    r"[0-9]{1,4}H([0-9]{1,4}M)?([0-9]{1,4}S)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}(\.[0-9]{1,6})?S"
)
_DAYS = "([0-9]{1,3}Y)?[0-9]{1,3}D|[0-9]{1,3}Y"
_DURATION = f"^-?P(({_DAYS})(T({_CLOCK}))?|T({_CLOCK}))$"
_KEYS = {
    "integer": f"^-?{_WHOLE}$",
    "number": rf"^-?{_WHOLE}(\.[0-9]+)?$",
    "boolean": "^(true|false)$",
}
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of", "now_op", "tz_constraint")
# Those that the grammar enforces and every text of which pydantic reads, and those that hold any string.
_FORMATS = frozenset(
    {
        "binary",
        "date",
        "date-time",
        "duration",
        "email",
        "ipv4",
        "ipv6",
        "password",
        "path",
        "time",
        "uuid",
    }
)
# Functions of pydantic that refuse nothing which their schema takes, or that leave it to the schema inside.
_OWN_VALIDATORS = frozenset({"<lambda>", "defaultdict_validator", "path_validator", "wrap_val"})


class NotExact(Exception):
    """A type is wider in JSON than in Python. The arguments are what it is, and a hint."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class ExactSchema(GenerateJsonSchema):
    """Raises NotExact."""

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        made: dict[str, Any] = super().generate_inner(schema)
        if schema["type"] == "function-plain":  # pydantic's describe themselves
            _refuse_unseen(schema, made)
        name = made.get("format")
        if made.get("type") == "string" and name not in (None, *_FORMATS):
            raise NotExact(f"text of the format {name!r}", "take it as a str with a pattern")
        return made

    def function_before_schema(self, schema: Any) -> dict[str, Any]:
        return _refuse_unseen(schema, super().function_before_schema(schema))

    def function_after_schema(self, schema: Any) -> dict[str, Any]:
        return _refuse_unseen(schema, super().function_after_schema(schema))

    def function_wrap_schema(self, schema: Any) -> dict[str, Any]:
        return _refuse_unseen(schema, super().function_wrap_schema(schema))

    def url_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("a URL", "take it as a str with a pattern")

    def multi_host_url_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("a URL", "take it as a str with a pattern")

    def chain_schema(self, schema: Any) -> dict[str, Any]:
        if any(step["type"] == "is-instance" for step in schema["steps"]):
            raise NotExact("a kind of object that only Python tells apart", "name its types")
        return super().chain_schema(schema)

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        bounds = {name for name in _BOUNDS if schema.get(name) is not None}
        if bounds - {"ge"} or schema.get("ge", 0) != 0:
            raise NotExact("a Decimal with bounds", "bound a float, or an int of the smallest unit")
        if digits is not None and (places is None or places >= digits):
            raise NotExact("a Decimal with max_digits alone", "give fewer decimal_places too")
        whole, part, exponent = _WHOLE, r"(\.[0-9]+)?", "([eE][-+]?[0-9]{1,3})?"
        if places is not None:
            exponent = ""
            part = rf"(\.[0-9]{{1,{places}}})?" if places else ""
            if digits is not None:
                whole = f"(0|[1-9][0-9]{{0,{digits - places - 1}}})"
        sign = "" if bounds else "-?"
        return {"type": "string", "pattern": f"^{sign}{whole}{part}{exponent}$"}

    def fraction_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("a Fraction", "take a Decimal, or two ints")

    def complex_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^-?{_NUMBER}[-+]{_NUMBER}j$"}

    def timedelta_schema(self, schema: Any) -> dict[str, Any]:
        _refuse_bounds("timedelta", schema)
        return {"type": "string", "pattern": _DURATION}

    def date_schema(self, schema: Any) -> dict[str, Any]:
        _refuse_bounds("date", schema)
        return super().date_schema(schema)

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        _refuse_bounds("datetime", schema)
        return super().datetime_schema(schema)

    def time_schema(self, schema: Any) -> dict[str, Any]:
        _refuse_bounds("time", schema)
        return super().time_schema(schema)

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        _refuse_values("an Enum", (member.value for member in schema["members"]))
        return super().enum_schema(schema)

    def literal_schema(self, schema: Any) -> dict[str, Any]:
        values = (v.value if isinstance(v, enum.Enum) else v for v in schema["expected"])
        _refuse_values("a Literal", values)
        return super().literal_schema(schema)

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_keys(schema, super().dict_schema(schema))

    def counter_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_keys(schema, super().counter_schema(schema))

    def ordered_dict_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_keys(schema, super().ordered_dict_schema(schema))

    def frozendict_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_keys(schema, super().frozendict_schema(schema))

    def _exact_keys(self, schema: Any, made: dict[str, Any]) -> dict[str, Any]:
        """What pydantic made of a kind of dict, without keys that are not in their type."""
        if "patternProperties" in made:
            # Keys that do not match it stay free otherwise, and so do their values.
            made["additionalProperties"] = False
            return made
        if "keys_schema" not in schema:
            return made
        keys: dict[str, Any] = self.generate_inner(schema["keys_schema"])
        while "$ref" in keys:
            keys = self.get_schema_from_definitions(keys["$ref"]) or {}
        names = keys.get("enum", [keys["const"]] if "const" in keys else None)
        if names is not None and all(isinstance(name, str) for name in names):
            return made
        kind = keys.get("type")
        if not keys or (kind == "string" and names is None):
            return made
        if kind not in _KEYS or set(keys) - {"type", "title"}:
            raise NotExact(
                "a dict with such keys", "keys are str, int, float, bool or names of an Enum"
            )
        made["patternProperties"] = {_KEYS[kind]: made.pop("additionalProperties", True)}
        made["additionalProperties"] = False
        return made

    def json_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("JSON inside of a string", "take the type inside of Json[...]")

    def generator_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("an Iterable, which can be read once", "take a list")

    def is_subclass_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("a class", "take a Literal of names")


def _refuse_bounds(kind: str, schema: Mapping[str, Any]) -> None:
    if any(schema.get(name) is not None for name in _BOUNDS):
        raise NotExact(f"a {kind} with bounds", "take it without, and check the value")


def _refuse_values(kind: str, values: Iterable[Any]) -> None:
    for value in values:
        if not isinstance(value, str | int | float | None):
            raise NotExact(
                f"{kind} of {type(value).__name__}", "values are str, int, float, bool or None"
            )


def _refuse_unseen(schema: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Refuse a check of pydantic's own that its schema does not show. A program's checks are its own."""
    function = schema["function"]["function"]
    function = getattr(function, "func", function)
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] != "pydantic" or name in _OWN_VALIDATORS:
        return made
    kind = made.get("type")
    sized = kind in ("array", "object") or (kind == "string" and "pattern" not in made)
    sized &= made.get("format") in (None, "password") and "enum" not in made
    if name not in ("min_length_validator", "max_length_validator") or not sized:
        raise NotExact(
            "a value that only Python can check",
            "put bounds on numbers, texts and lists themselves, or take a str with a pattern",
        )
    return made
