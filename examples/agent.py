"""An agent with tools: it chooses a tool, fills in the arguments, asks for opinions, and answers.

    python examples/agent.py "What is 12 * 7 + 5?"

`select` makes sure that the tool exists, a schema that its arguments are valid, and `fork` lets
several opinions share everything that was said so far.
"""

from __future__ import annotations

import argparse
import ast
import operator
import sys

from pydantic import BaseModel, Field

import stolon as sl

FACTS = {
    "strawberry": "A strawberry spreads by stolons: runners that root where they touch the ground.",
    "lisbon": "Lisbon is the capital of Portugal and lies at the mouth of the Tagus.",
    "tide": "High tides come about every 12 hours and 25 minutes.",
}

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculation(BaseModel):
    expression: str = Field(pattern=r"^[0-9][0-9+*/. -]{0,30}$")


class Lookup(BaseModel):
    topic: str = Field(pattern="^(" + "|".join(FACTS) + ")$")


def calculate(arguments: Calculation) -> str:
    """Arithmetic on a parsed expression; nothing is executed."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("only numbers and + - * /")

    try:
        return f"{value(ast.parse(arguments.expression, mode='eval').body):g}"
    except (SyntaxError, ValueError, ArithmeticError) as error:
        return f"error: {error}"


def look_up(arguments: Lookup) -> str:
    return FACTS[arguments.topic]


TOOLS = {"calculate": (Calculation, calculate), "look_up": (Lookup, look_up)}
EXAMPLES = (
    ("How much is 3 times 4?", 'calculate {"expression": "3 * 4"}'),
    ("Result: 12", "finish"),
    ("Where does Lisbon lie?", 'look_up {"topic": "lisbon"}'),
    (f"Result: {FACTS['lisbon']}", "finish"),
)
VIEWS = ("A careful person would say", "A cheerful person would say")


@sl.function
def agent(s: sl.ProgramState, question: str, steps: int) -> None:
    s += sl.system("You answer questions. You may use notes that are known to be right.")
    notes = []
    with s.copy() as desk:  # tools are chosen at a desk of their own, with examples
        for example, call in EXAMPLES:
            desk += sl.user(example) + sl.assistant(call)
        desk += sl.user(question)
        for _ in range(steps):
            # One assistant turn: the name of a tool, then its arguments as JSON.
            desk += sl.assistant_begin() + sl.select("tool", [*TOOLS, "finish"])
            if desk["tool"] == "finish":
                break
            arguments, function = TOOLS[desk["tool"]]
            desk += " " + sl.gen("arguments", schema=arguments, max_tokens=48, temperature=0)
            desk += sl.assistant_end()
            notes.append((desk["tool"], desk["arguments"], function(desk.value("arguments"))))
            desk += sl.user(f"Result: {notes[-1][2]}")
    s += sl.user("\n".join([f"Note: {result}" for _, _, result in notes] + [question]))
    opinions = s.fork(len(VIEWS))
    for view, opinion in zip(VIEWS, opinions, strict=True):
        opinion += sl.assistant(f"{view}:" + sl.gen("opinion", max_tokens=24, stop=["\n", "."]))
    s += sl.assistant("Answer:" + sl.gen("answer", max_tokens=40, stop=["\n"], temperature=0))
    s["notes"] = notes
    s["opinions"] = [opinion["opinion"] for opinion in opinions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="What is 12 * 7?")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with sl.Engine(args.model) as engine:
        state = agent.run(args.question, args.steps, backend=engine, seed=args.seed)
    for tool, arguments, result in state["notes"]:
        print(f"tool      {tool} {arguments} -> {result}")
    for view, opinion in zip(VIEWS, state["opinions"], strict=True):
        print(f"opinion   {view}: {opinion.strip()}")
    print(f"answer    {state['answer'].strip()}")
    print()
    print(state.trace)


if __name__ == "__main__":
    try:
        main()
    except (sl.StolonError, OSError) as error:
        print(f"agent: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
