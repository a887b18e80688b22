"""What is known of a program before it runs: its plan, and what it saves to compile it.

    python examples/plan.py

The body runs once with placeholders for its arguments. What is constant is computed early, grammars are
compiled, and a mistake in one of them is found here.
"""

from __future__ import annotations

from _frame import frame
from pydantic import BaseModel, Field

import stolon as sl

RULES = "".join(f"Tickets of kind {n} go to desk {n}.\n" for n in range(1, 25))


class Route(BaseModel):
    desk: int = Field(ge=1, le=24)
    urgent: bool


@sl.function
def triage(s: sl.ProgramState, ticket: str) -> None:
    s += sl.system("You route support tickets.\n" + RULES)
    s += sl.user("Ticket: " + ticket)
    s += sl.assistant(sl.gen("route", schema=Route, max_tokens=32))
    for branch in s.fork(2):
        branch += sl.user("Draft an answer.") + sl.assistant(sl.gen("draft", max_tokens=16))


def main() -> None:
    with sl.Engine() as engine:
        compiled = triage.compile(engine)
        print(compiled.plan)
        print(f"\ncomputed before the first ticket: {compiled.prefix.tokens} tokens\n")
        for ticket in ("I can't log in, and my boss is waiting!", "Where do I find my invoices?"):
            state = compiled.run(ticket, seed=1)
            first = state.trace.calls[0].tokens
            print(f"{state['route']}   cached {first.cached}, computed {first.computed}: {ticket}")


if __name__ == "__main__":
    with frame():
        main()
