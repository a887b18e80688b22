"""An agent with tools: it chooses a tool, fills in the arguments, asks for opinions, and answers.

    python examples/agent.py "What is 12 * 7 + 5?"

`select` makes sure that the tool exists, a schema that its arguments are valid, and `fork` lets several
opinions share everything that was said so far.
"""

from __future__ import annotations

import argparse
import ast
import operator

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
    ast.USub: operator.neg,
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
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.operand))
        raise ValueError("only numbers and + - * /")

    try:
        return f"{value(ast.parse(arguments.expression, mode='eval').body):g}"
    except (SyntaxError, ValueError, ArithmeticError) as error:
        return f"error: {error}"


def look_up(arguments: Lookup) -> str:
    return FACTS[arguments.topic]


TOOLS = {"calculate": (Calculation, calculate), "look_up": (Lookup, look_up)}
VIEWS = ("Is the result plausible?", "What could be wrong with it?")


@sl.function
def agent(s: sl.ProgramState, question: str, steps: int) -> None:
    s += sl.system(
        "You answer with tools. calculate computes an expression like 3 * 4. "
        f"look_up knows: {', '.join(FACTS)}. finish gives the answer."
    )
    s += sl.user(question)
    observations = []
    for _ in range(steps):
        # One assistant turn: the name of a tool, then its arguments as JSON.
        s += sl.assistant_begin() + sl.select("tool", [*TOOLS, "finish"])
        if s["tool"] == "finish":
            s += sl.assistant_end()
            break
        arguments, function = TOOLS[s["tool"]]
        s += " " + sl.gen("arguments", schema=arguments, max_tokens=48, temperature=0)
        s += sl.assistant_end()
        observations.append((s["tool"], s["arguments"], function(s.value("arguments"))))
        s += sl.user(f"Result: {observations[-1][2]}")
    opinions = s.fork(len(VIEWS))
    for view, opinion in zip(VIEWS, opinions, strict=True):
        opinion += sl.user(view) + sl.assistant(sl.gen("opinion", max_tokens=24, stop=["\n"]))
    s += sl.user(f"Answer in one sentence: {question}")
    s += sl.assistant(sl.gen("answer", max_tokens=40, stop=["\n"], temperature=0))
    s["observations"] = observations
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
    for tool, arguments, result in state["observations"]:
        print(f"tool      {tool} {arguments} -> {result}")
    for view, opinion in zip(VIEWS, state["opinions"], strict=True):
        print(f"opinion   {view} {opinion.strip()}")
    print(f"answer    {state['answer'].strip()}")
    print()
    print(state.trace)


if __name__ == "__main__":
    main()
