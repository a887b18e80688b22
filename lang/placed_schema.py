"""JSON schemas of Python types, which know what part of a type they fail in."""

from __future__ import annotations

from typing import Any

from pydantic import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from stolon.lang.not_exact import NotExact


class PlacedSchema(GenerateJsonSchema):
    """Raises NotExact, with the parts of the type that were being described."""

    _failed: Exception | None = None
    _parts: tuple[Any, ...] = ()

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        try:
            return super().generate(schema, mode)
        except NotExact as error:
            error.parts = self._parts
            raise
        except PydanticInvalidForJsonSchema as error:
            refusal = NotExact(
                "a value that JSON can't hold", "leave it out, or take what it is made of"
            )
            refusal.parts = self._parts
            raise refusal from error

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        try:
            return self.exact(schema, super().generate_inner(schema))
        except (NotExact, PydanticInvalidForJsonSchema) as error:
            if error is not self._failed:
                self._failed, self._parts = error, ()
            self._parts += (schema,)
            raise

    def exact(self, schema: Any, made: dict[str, Any]) -> dict[str, Any]:
        """What pydantic made of a part; for subclasses, which may refuse it."""
        return made
