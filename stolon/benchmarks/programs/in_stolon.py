"""The eight programs in the language. in_calls.py has the same as separate calls."""

from __future__ import annotations

import stolon as sl
from stolon.benchmarks.programs import constraints as like
from stolon.benchmarks.programs.in_calls import (
    ACTION_TOKENS,
    BRANCHES,
    CARRY_OUT,
    DECIDE,
    DECISION_TOKENS,
    DIMENSIONS,
    EXPANSION_TOKENS,
    FINISH,
    JUDGEMENT_TOKENS,
    OUTLINE_TOKENS,
    PLAN_TOKENS,
    POINTS,
    RATE,
    REASONING_TOKENS,
    SAMPLES,
    SHEET_TOKENS,
    SOLUTION_TOKENS,
    SUMMARISE,
    TEMPERATURE,
    THOUGHT_TOKENS,
    TURN_TOKENS,
    VERDICT_TOKENS,
    Item,
    vote,
)
from stolon.lang.ir import Expr

__all__ = ["PROGRAMS"]


@sl.function
def few_shot(s: sl.ProgramState, examples: str, question: str) -> Item:
    s += f"{examples}\n\n{question}\nAnswer:" + sl.select("letter", like.LETTERS)
    return {"letter": s["letter"]}


@sl.function
def chat(s: sl.ProgramState, instructions: str, first: str, second: str) -> Item:
    s += sl.system(instructions)
    s += sl.user(first) + sl.assistant(free("one", TURN_TOKENS))
    s += sl.user(second) + sl.assistant(free("two", TURN_TOKENS))
    return {"answers": [s["one"], s["two"]]}


@sl.function
def tree_of_thought(s: sl.ProgramState, instructions: str, problem: str) -> Item:
    s += sl.system(instructions) + sl.user(problem)
    leaves: list[sl.ProgramState] = []
    for plan in s.fork(BRANCHES):
        plan += sl.assistant(free("plan", PLAN_TOKENS, TEMPERATURE)) + sl.user(CARRY_OUT)
        for leaf in plan.fork(BRANCHES):
            leaf += sl.assistant(free("solution", SOLUTION_TOKENS, TEMPERATURE))
            leaf += sl.user(RATE) + sl.assistant(sl.select("grade", like.GRADES))
            leaves.append(leaf)
    best = max(leaves, key=lambda leaf: leaf["grade"])
    best += sl.user(FINISH)
    best += sl.assistant(sl.gen("number", regex=like.NUMBER, max_tokens=8, temperature=0))
    return {"grades": [leaf["grade"] for leaf in leaves], "number": best["number"]}


@sl.function
def skeleton(s: sl.ProgramState, instructions: str, question: str) -> Item:
    s += sl.system(instructions) + sl.user(question)
    outline = sl.gen("outline", regex=like.OUTLINE, max_tokens=OUTLINE_TOKENS, temperature=0)
    s += sl.assistant(outline)
    points = s["outline"].split("\n")
    branches = s.fork(POINTS)
    for point, branch in zip(points, branches, strict=True):
        branch += sl.user(f"Write out: {point}") + sl.assistant(free("text", EXPANSION_TOKENS))
    return {"outline": s["outline"], "texts": [branch["text"] for branch in branches]}


@sl.function
def judge(s: sl.ProgramState, instructions: str, essay: str) -> Item:
    s += sl.system(instructions) + sl.user(essay)
    views = s.fork(len(DIMENSIONS))
    for dimension, view in zip(DIMENSIONS, views, strict=True):
        view += sl.user(f"What about its {dimension}?")
        view += sl.assistant(free("opinion", JUDGEMENT_TOKENS))
        view += sl.user(RATE) + sl.assistant(sl.select("grade", like.GRADES))
    opinions = "\n".join(
        f"{dimension}, {view['grade']} of 5: {view['opinion']}"
        for dimension, view in zip(DIMENSIONS, views, strict=True)
    )
    s += sl.user(f"{opinions}\n{SUMMARISE}") + sl.assistant(free("verdict", VERDICT_TOKENS))
    s += sl.user(DECIDE)
    decision = sl.gen("decision", schema=like.Decision, max_tokens=DECISION_TOKENS, temperature=0)
    s += sl.assistant(decision)
    return {
        "grades": [view["grade"] for view in views],
        "verdict": s["verdict"],
        "decision": s["decision"],
    }


@sl.function
def agent(s: sl.ProgramState, examples: str, question: str, observations: list[str]) -> Item:
    s += f"{examples}\n\nQuestion: {question}\n"
    actions = []
    for step, observation in enumerate(observations, 1):
        s += f"Thought {step}:" + free("thought", THOUGHT_TOKENS) + f"\nAction {step}:"
        s += sl.gen("action", regex=like.ACTION, max_tokens=ACTION_TOKENS, temperature=0)
        actions.append(s["action"])  # a tool would be called here
        s += f"\nObservation {step}: {observation}\n"
    s += "Answer:" + free("answer", THOUGHT_TOKENS)
    return {"actions": actions, "answer": s["answer"]}


@sl.function
def character(s: sl.ProgramState, examples: str, story: str) -> Item:
    s += f"{examples}\n\n{story}\nJSON:"
    s += sl.gen("sheet", schema=like.Sheet, max_tokens=SHEET_TOKENS, temperature=0)
    return {"sheet": s["sheet"]}


@sl.function
def self_consistency(s: sl.ProgramState, examples: str, problem: str) -> Item:
    s += f"{examples}\n\nProblem: {problem}\nReasoning:"
    s += free("texts", REASONING_TOKENS, TEMPERATURE, n=SAMPLES)
    return {"result": vote(s["texts"])}


def free(name: str, tokens: int, temperature: float = 0.0, n: int = 1) -> Expr:
    """Text of exactly so many tokens: engines are compared on the same work."""
    return sl.gen(name, max_tokens=tokens, temperature=temperature, n=n, ignore_eos=True)


PROGRAMS = {
    program.name: program
    for program in (
        few_shot,
        chat,
        tree_of_thought,
        skeleton,
        judge,
        agent,
        character,
        self_consistency,
    )
}
