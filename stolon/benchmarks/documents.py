"""Documents to extract records from: short notices, and examples of what is wanted of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

DOCUMENTS = 64
EXAMPLES = 9
"""Worked examples in front of every document: about 900 tokens that all prompts share."""
MAX_TOKENS = 96

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "invoice": {"type": "string"},
        "customer": {"type": "string"},
        "city": {"type": "string"},
        "amount": {"type": "integer"},
        "currency": {"enum": ["EUR", "USD", "GBP", "CHF"]},
        "paid": {"type": "boolean"},
    },
    "required": ["invoice", "customer", "city", "amount", "currency", "paid"],
    "additionalProperties": False,
}

_NAMES = ("Marlow", "Okafor", "Lindqvist", "Haddad", "Petrov", "Nakamura", "Duarte", "Keller")
_TRADES = ("Printing", "Bakery", "Shipping", "Optics", "Joinery", "Textiles", "Pumps", "Glass")
_CITIES = ("Bergen", "Leeds", "Porto", "Zurich", "Lyon", "Trieste", "Utrecht", "Galway", "Gdansk")
_NOTES = (
    "The goods left the warehouse on Monday morning.",
    "Two crates were damaged on the way and have been replaced.",
    "The delivery note is signed by the foreman.",
    "Please quote the number in every letter about this order.",
    "The discount of the spring offer is already taken off.",
)


def record(number: int) -> tuple[str, dict[str, Any]]:
    """A notice and the record that is in it, the same ones on every machine."""
    draw = random.Random(number)
    found = {
        "invoice": f"{draw.choice('ABKRT')}{draw.choice('CDLX')}-{draw.randrange(1000, 10000)}",
        "customer": f"{draw.choice(_NAMES)} {draw.choice(_TRADES)}",
        "city": draw.choice(_CITIES),
        "amount": draw.randrange(40, 20000),
        "currency": draw.choice(SCHEMA["properties"]["currency"]["enum"]),
        "paid": draw.random() < 0.5,
    }
    state = "has been paid in full" if found["paid"] else "is still open"
    notice = (
        f"Notice to {found['customer']} of {found['city']}: invoice {found['invoice']} over "
        f"{found['amount']} {found['currency']} {state}. {draw.choice(_NOTES)}"
    )
    return notice, found


def prompts(count: int = DOCUMENTS) -> Iterator[str]:
    """Prompts that are the same up to their last notice."""
    parts = ["Copy the facts of each notice into a JSON object.\n"]
    for number in range(EXAMPLES):
        notice, found = record(1_000_000 + number)
        parts.append(f"Notice: {notice}\nJSON: {json.dumps(found)}\n")
    shared = "\n".join(parts)
    for number in range(count):
        yield f"{shared}\nNotice: {record(number)[0]}\nJSON:"
