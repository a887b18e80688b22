"""The dialects in which clients ask for constrained output, all mapped to one GrammarSpec.

``response_format`` (OpenAI), ``structured_outputs`` and ``guided_*`` (vLLM, guidance, outlines),
top-level ``regex``, ``ebnf`` and ``json_schema`` (SGLang, outlines).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stolon.constrained import GrammarSpec, parse_json
from stolon.errors import GrammarError, InvalidRequest
from stolon.srt.protocol import MAX_CHOICES

Whitespace = Literal["compact", "pep"]


class JSONSchemaFormat(msgspec.Struct, kw_only=True):
    name: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str
    json_schema: JSONSchemaFormat | None = None
    format: Any = None
    structures: Any = None
    triggers: Any = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None  # there is nothing to fall back on
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class ConstraintFields(msgspec.Struct, kw_only=True):
    """The fields of a request body that constrain its output."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    structural_tag: Any = None
    after: str | None = None

    def grammar(self) -> GrammarSpec | None:
        """The one constraint of the request.

        Raises InvalidRequest if there are two different ones.
        """
        return starting_after(only(self.constraints()), self.after, "after")

    def constraints(self) -> dict[str, GrammarSpec]:
        """What constrains the output, by the names of the fields."""
        found: dict[str, GrammarSpec] = {}
        if self.response_format is not None:
            spec = _of_response_format(self.response_format)
            if spec is not None:
                found["response_format"] = spec
        if self.structured_outputs is not None:
            found["structured_outputs"] = _of_structured_outputs(self.structured_outputs)
        if self.guided_json is not None:
            found["guided_json"] = schema_spec(self.guided_json, "guided_json")
        if self.guided_regex is not None:
            found["guided_regex"] = GrammarSpec(kind="regex", text=self.guided_regex)
        if self.guided_choice is not None:
            found["guided_choice"] = choice_spec(self.guided_choice, "guided_choice")
        if self.guided_grammar is not None:
            found["guided_grammar"] = grammar_spec(self.guided_grammar)
        if self.json_schema is not None:
            found["json_schema"] = schema_spec(self.json_schema, "json_schema")
        if self.regex is not None:
            found["regex"] = GrammarSpec(kind="regex", text=self.regex)
        if self.ebnf is not None:
            found["ebnf"] = GrammarSpec(kind="ebnf", text=self.ebnf)
        if self.lark is not None:
            found["lark"] = GrammarSpec(kind="lark", text=self.lark)
        if self.structural_tag is not None:
            found["structural_tag"] = structural_spec(self.structural_tag, "structural_tag")
        return found


def starting_after(spec: GrammarSpec | None, after: str | None, param: str) -> GrammarSpec | None:
    """The constraint, from the first time on that the text says `after`, if anything."""
    if not after:
        return spec
    if spec is None:
        raise InvalidRequest("after says where a constraint begins, and there is none", param=param)
    return msgspec.structs.replace(spec, after=after)


def only(found: dict[str, GrammarSpec]) -> GrammarSpec | None:
    """The single spec among `found` (field name to spec); the same one under two names is fine."""
    specs = list(found.values())
    if any(spec != specs[0] for spec in specs):
        names = ", ".join(found)
        raise InvalidRequest(
            f"only one output constraint can hold; the request has {names}", param=next(iter(found))
        )
    return specs[0] if specs else None


def schema_spec(schema: Any, param: str, whitespace: Whitespace = "pep") -> GrammarSpec:
    """A JSON Schema given as an object, or as JSON text of one. Key order is kept."""
    if isinstance(schema, str):
        schema = _decoded(schema, param)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{param} must be a JSON Schema: an object", param=param)
    return GrammarSpec(
        kind="json_schema", text=msgspec.json.encode(schema).decode(), whitespace=whitespace
    )


def choice_spec(choices: list[str], param: str) -> GrammarSpec:
    if not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidRequest(f"{param} takes 1 to {MAX_CHOICES} strings", param=param)
    return GrammarSpec(kind="choice", text=msgspec.json.encode(choices).decode())


def structural_spec(tag: Any, param: str, whitespace: Whitespace = "pep") -> GrammarSpec:
    """Constrained spans in free text, given as an object or as its JSON text; see `structural`."""
    if isinstance(tag, str):
        tag = _decoded(tag, param)
    if not isinstance(tag, dict):
        raise InvalidRequest(f"{param} must be an object", param=param)
    return GrammarSpec(
        kind="structural_tag", text=msgspec.json.encode(tag).decode(), whitespace=whitespace
    )


def _decoded(text: str, param: str) -> Any:
    """The value of JSON text in a field. Raises GrammarError, also for a key that comes twice."""
    try:
        parse_json(text)
    except GrammarError as error:
        error.param = param
        raise
    return msgspec.json.decode(text)  # as numbers are written again


def grammar_spec(text: str) -> GrammarSpec:
    """Clients send Lark and EBNF under the same name; only EBNF rules are written with ``::=``."""
    return GrammarSpec(kind="ebnf" if "::=" in text else "lark", text=text)


_FORM_FIELDS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": (),
    "json_schema": ("json_schema",),
    "structural_tag": ("format", "structures", "triggers"),
}
"""What each type of a response format reads besides."""


def _of_response_format(form: ResponseFormat) -> GrammarSpec | None:
    read = _FORM_FIELDS.get(form.type)
    for name in ("json_schema", "format", "structures", "triggers"):
        if read is not None and name not in read and getattr(form, name) is not None:
            raise InvalidRequest(
                f"response_format.{name} says nothing with the type {form.type!r}",
                param=f"response_format.{name}",
            )
    match form.type:
        case "text":
            return None
        case "json_object":
            return GrammarSpec(kind="json_object")
        case "json_schema":
            if form.json_schema is None or form.json_schema.schema is None:
                param = "response_format.json_schema"
                raise InvalidRequest(f"{param} must hold a schema", param=param)
            return schema_spec(form.json_schema.schema, "response_format.json_schema.schema")
        case "structural_tag":
            given = {name: getattr(form, name) for name in ("format", "structures", "triggers")}
            tag = {name: value for name, value in given.items() if value is not None}
            return structural_spec(tag, "response_format")
        case _:
            raise InvalidRequest(
                "response_format.type must be text, json_object, json_schema or structural_tag",
                param="response_format.type",
            )


def _of_structured_outputs(form: StructuredOutputs) -> GrammarSpec:
    at = "structured_outputs"
    for name in ("whitespace_pattern", "disable_additional_properties"):
        if getattr(form, name):
            raise InvalidRequest(f"{at}.{name} is not supported", param=f"{at}.{name}")
    whitespace: Whitespace = "compact" if form.disable_any_whitespace else "pep"
    found: dict[str, GrammarSpec] = {}
    if form.json is not None:
        found[f"{at}.json"] = schema_spec(form.json, f"{at}.json", whitespace)
    if form.regex is not None:
        found[f"{at}.regex"] = GrammarSpec(kind="regex", text=form.regex)
    if form.choice is not None:
        found[f"{at}.choice"] = choice_spec(form.choice, f"{at}.choice")
    if form.grammar is not None:
        found[f"{at}.grammar"] = grammar_spec(form.grammar)
    if form.json_object:
        found[f"{at}.json_object"] = GrammarSpec(kind="json_object", whitespace=whitespace)
    if form.structural_tag is not None:
        found[f"{at}.structural_tag"] = structural_spec(
            form.structural_tag, f"{at}.structural_tag", whitespace
        )
    spec = only(found)
    if spec is None:
        raise InvalidRequest(
            f"{at} needs one of json, regex, choice, grammar, json_object, structural_tag", param=at
        )
    return spec
