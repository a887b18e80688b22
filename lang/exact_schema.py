"""JSON schemas of Python types that describe no text which is not in the type.

pydantic's own are wider in places: any string is a Decimal to them, any key one of a dict[int, str]. What
can be said exactly is said here; what can't is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stolon.lang.float_bounds import bound_floats
from stolon.lang.not_exact import (
    BOUNDS,
    NotExact,
    refuse_bounds,
    refuse_count,
    refuse_equal,
    refuse_flags,
    refuse_members,
    refuse_paths,
    refuse_unseen,
    refuse_values,
)
from stolon.lang.placed_schema import PlacedSchema
from stolon.lang.shared_text import shared_text

_ASCII = r"^[\x00-\x7f]*$"
_STRIPPED = r"^([^\s\x85]([\s\S]*[^\s\x85])?)?$"
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


class ExactSchema(PlacedSchema):
    """Raises NotExact."""

    _converted = 0  # validators around, which see a value before its type does

    def exact(self, schema: Any, made: dict[str, Any]) -> dict[str, Any]:
        if schema["type"] == "function-plain":  # pydantic's describe themselves
            refuse_unseen(schema, made)
        name = made.get("format")
        if made.get("type") == "string" and name not in (None, *_FORMATS):
            raise NotExact(f"text of the format {name!r}", "take it as a str with a pattern")
        return made

    def function_before_schema(self, schema: Any) -> dict[str, Any]:
        return self._converting(schema, super().function_before_schema)

    def function_after_schema(self, schema: Any) -> dict[str, Any]:
        return refuse_unseen(schema, super().function_after_schema(schema))

    def function_wrap_schema(self, schema: Any) -> dict[str, Any]:
        return self._converting(schema, super().function_wrap_schema)

    def _converting(self, schema: Any, make: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        self._converted += 1
        try:
            return refuse_unseen(schema, make(schema))
        finally:
            self._converted -= 1

    def model_field_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_field(schema, super().model_field_schema(schema))

    def dataclass_field_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_field(schema, super().dataclass_field_schema(schema))

    def typed_dict_field_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_field(schema, super().typed_dict_field_schema(schema))

    def _exact_field(self, schema: Any, made: dict[str, Any]) -> dict[str, Any]:
        if not (self._setting("validate_by_name") or self._setting("populate_by_name")):
            refuse_paths(schema)
        return made

    def _setting(self, name: str) -> Any:
        """A setting of the model around; None in versions of pydantic that don't have it."""
        return getattr(self._config, name, None)

    def str_schema(self, schema: Any) -> dict[str, Any]:
        refuse_flags(schema)
        made: dict[str, Any] = super().str_schema(schema)
        more = shared_text(made.get("pattern", ""))
        if schema.get("strip_whitespace", self._setting("str_strip_whitespace")):
            # Lengths and patterns are of what is left; of such text all is.
            more.append(_STRIPPED)
        if more:
            made["allOf"] = [{"pattern": pattern} for pattern in more]
        return made

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        if self._setting("val_json_bytes") not in (None, "utf8"):
            raise NotExact("bytes in base64 or hex", "take them as UTF-8, or a str with a pattern")
        made: dict[str, Any] = super().bytes_schema(schema)
        if "maxLength" in made or "minLength" in made:
            made["pattern"] = _ASCII  # lengths are of bytes here, and of characters there
        return made

    def float_schema(self, schema: Any) -> dict[str, Any]:
        finite = schema.get("allow_inf_nan", self._setting("allow_inf_nan")) is False
        return bound_floats(super().float_schema(schema), finite=finite)

    def set_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_members(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> dict[str, Any]:
        return self._exact_members(super().frozenset_schema(schema))

    def _exact_members(self, made: dict[str, Any]) -> dict[str, Any]:
        if made.get("minItems", 0) > 1:
            refuse_equal(self._alternatives(made.get("items", {})))
        return made

    def _alternatives(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        while "$ref" in schema:
            schema = self.get_schema_from_definitions(schema["$ref"]) or {}
        inside = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        return [found for one in inside for found in self._alternatives(one)] or [schema]

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
        bounds = {name for name in BOUNDS if schema.get(name) is not None}
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
        refuse_bounds("timedelta", schema)
        return {"type": "string", "pattern": _DURATION}

    def date_schema(self, schema: Any) -> dict[str, Any]:
        refuse_bounds("date", schema)
        return super().date_schema(schema)

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        refuse_bounds("datetime", schema)
        return super().datetime_schema(schema)

    def time_schema(self, schema: Any) -> dict[str, Any]:
        refuse_bounds("time", schema)
        return super().time_schema(schema)

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        refuse_values("an Enum", (member.value for member in schema["members"]))
        return super().enum_schema(schema)

    def literal_schema(self, schema: Any) -> dict[str, Any]:
        refuse_members(schema, converted=self._converted > 0)
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
            refuse_count(made)
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
        refuse_count(made)
        made["patternProperties"] = {_KEYS[kind]: made.pop("additionalProperties", True)}
        made["additionalProperties"] = False
        return made

    def json_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("JSON inside of a string", "take the type inside of Json[...]")

    def generator_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("an Iterable, which can be read once", "take a list")

    def is_subclass_schema(self, schema: Any) -> dict[str, Any]:
        raise NotExact("a class", "take a Literal of names")
