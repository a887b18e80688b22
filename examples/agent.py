"""An agent with tools: Python functions, described by their signatures and docstrings.

    python examples/agent.py "Where does Lisbon lie?"

A call always names a tool that exists, with arguments of its types. What a tool raises is shown to the
model as its result.
"""

from __future__ import annotations

import argparse
from typing import Annotated, Literal

from _frame import frame
from pydantic import Field

import stolon as sl

FACTS = {
    "strawberry": "A strawberry spreads by stolons: runners that root where they touch the ground.",
    "lisbon": "Lisbon is the capital of Portugal and lies at the mouth of the Tagus.",
    "tide": "High tides come about every 12 hours and 25 minutes.",
}
Number = Annotated[int, Field(ge=-9999, le=9999)]


def calculate(left: Number, operator: Literal["+", "-", "*", "/"], right: Number) -> float:
    """Do arithmetic with two numbers."""
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right


def look_up(topic: Literal["strawberry", "lisbon", "tide"]) -> str:
    """Look up a fact about a topic."""
    return FACTS[topic]


@sl.function
def agent(s: sl.ProgramState, question: str, rounds: int) -> None:
    s["results"] = sl.use_tools(
        s,
        [calculate, look_up],
        question,
        rounds=rounds,
        required=True,
        parallel=False,
        max_tokens=64,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="What is 12 * 7?")
    parser.add_argument("--rounds", type=int, default=1, help="turns in which tools may be called")
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    with sl.Engine(args.model) as engine:
        state = agent.run(args.question, args.rounds, backend=engine, temperature=0)
    for result in state["results"]:
        print(f"tool    {result.call.name} {result.call.arguments} -> {result.text}")
    print(f"answer  {state['answer']}\n")
    print(state.trace)


if __name__ == "__main__":
    with frame():
        main()
