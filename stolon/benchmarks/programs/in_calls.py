"""The eight programs as separate calls of a model, the way one writes them for an OpenAI-style endpoint.

This file runs in the Python of each peer: it needs the standard library only. A script gets a
`Model` (see driver.py) and one item of inputs.py, and returns what the same program in in_stolon.py
returns. Calls that do not depend on each other are made at the same time. Constraints go by their
names in constraints.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

TURN_TOKENS = 48
PLAN_TOKENS = 32
SOLUTION_TOKENS = 40
BRANCHES = 2
OUTLINE_TOKENS = 120
POINTS = 4
EXPANSION_TOKENS = 40
JUDGEMENT_TOKENS = 32
DIMENSIONS = ("clarity", "evidence", "structure", "originality")
VERDICT_TOKENS = 32
DECISION_TOKENS = 48
THOUGHT_TOKENS = 24
ACTION_TOKENS = 32
SHEET_TOKENS = 240
SAMPLES = 8
REASONING_TOKENS = 48
TEMPERATURE = 0.7

CARRY_OUT = "Carry out the plan step by step."
RATE = "How good is this solution? Answer with a grade from 1 (bad) to 5 (good)."
FINISH = "State the result as a number."
SUMMARISE = "Sum up these opinions in one sentence."
DECIDE = "Give the final decision as JSON with grade and publish."

Item = dict[str, Any]


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def few_shot(model: Any, examples: str, question: str) -> Item:
    """Multiple choice behind worked examples that all questions share."""
    letter = await model.text(f"{examples}\n\n{question}\nAnswer:", 4, like="letter")
    return {"letter": letter}


async def chat(model: Any, instructions: str, first: str, second: str) -> Item:
    """Two turns of a conversation."""
    messages = [system(instructions), user(first)]
    one = await model.text(messages, TURN_TOKENS)
    messages += [assistant(one), user(second)]
    two = await model.text(messages, TURN_TOKENS)
    return {"answers": [one, two]}


async def tree_of_thought(model: Any, instructions: str, problem: str) -> Item:
    """Plans, solutions of each plan, a grade of each solution; the best one is finished."""
    root = [system(instructions), user(problem)]
    plans = await model.samples(root, PLAN_TOKENS, n=BRANCHES, temperature=TEMPERATURE)

    async def solve(plan: str) -> list[tuple[str, list[dict[str, str]]]]:
        path = [*root, assistant(plan), user(CARRY_OUT)]
        solutions = await model.samples(path, SOLUTION_TOKENS, n=BRANCHES, temperature=TEMPERATURE)
        return await asyncio.gather(*(rate([*path, assistant(text)]) for text in solutions))

    async def rate(path: list[dict[str, str]]) -> tuple[str, list[dict[str, str]]]:
        path = [*path, user(RATE)]
        grade = await model.text(path, 4, like="grade")
        return grade, [*path, assistant(grade)]

    found = await asyncio.gather(*map(solve, plans))
    leaves = [leaf for leaves in found for leaf in leaves]
    _, path = max(leaves, key=lambda leaf: leaf[0])
    number = await model.text([*path, user(FINISH)], 8, like="number")
    return {"grades": [grade for grade, _ in leaves], "number": number}


async def skeleton(model: Any, instructions: str, question: str) -> Item:
    """An outline, and its points written out in parallel."""
    messages = [system(instructions), user(question)]
    outline = await model.text(messages, OUTLINE_TOKENS, like="outline")
    messages.append(assistant(outline))
    points = outline.split("\n")

    async def expand(number: int) -> str:
        point = points[number] if number < len(points) else ""
        text: str = await model.text([*messages, user(f"Write out: {point}")], EXPANSION_TOKENS)
        return text

    texts = await asyncio.gather(*map(expand, range(POINTS)))
    return {"outline": outline, "texts": texts}


async def judge(model: Any, instructions: str, essay: str) -> Item:
    """An essay judged in several dimensions at once, then as a whole."""
    root = [system(instructions), user(essay)]

    async def look_at(dimension: str) -> tuple[str, str]:
        messages = [*root, user(f"What about its {dimension}?")]
        opinion = await model.text(messages, JUDGEMENT_TOKENS)
        messages += [assistant(opinion), user(RATE)]
        return opinion, await model.text(messages, 4, like="grade")

    found = await asyncio.gather(*map(look_at, DIMENSIONS))
    opinions = "\n".join(
        f"{dimension}, {grade} of 5: {opinion}"
        for dimension, (opinion, grade) in zip(DIMENSIONS, found, strict=True)
    )
    messages = [*root, user(f"{opinions}\n{SUMMARISE}")]
    verdict = await model.text(messages, VERDICT_TOKENS)
    messages += [assistant(verdict), user(DECIDE)]
    decision = await model.text(messages, DECISION_TOKENS, like="decision")
    return {"grades": [grade for _, grade in found], "verdict": verdict, "decision": decision}


async def agent(model: Any, examples: str, question: str, observations: list[str]) -> Item:
    """Thoughts and tool calls; what the tools answered was recorded before."""
    text = f"{examples}\n\nQuestion: {question}\n"
    actions = []
    for step, observation in enumerate(observations, 1):
        text += f"Thought {step}:"
        text += await model.text(text, THOUGHT_TOKENS)
        text += f"\nAction {step}:"
        actions.append(await model.text(text, ACTION_TOKENS, like="action"))
        text += f"{actions[-1]}\nObservation {step}: {observation}\n"
    text += "Answer:"
    answer = await model.text(text, THOUGHT_TOKENS)
    return {"actions": actions, "answer": answer}


async def character(model: Any, examples: str, story: str) -> Item:
    """A character sheet as JSON under a schema."""
    sheet = await model.text(f"{examples}\n\n{story}\nJSON:", SHEET_TOKENS, like="sheet")
    return {"sheet": sheet}


async def self_consistency(model: Any, examples: str, problem: str) -> Item:
    """Several lines of reasoning about one problem; the most frequent result counts."""
    prompt = f"{examples}\n\nProblem: {problem}\nReasoning:"
    texts = await model.samples(prompt, REASONING_TOKENS, n=SAMPLES, temperature=TEMPERATURE)
    return {"result": vote(texts)}


def vote(texts: list[str]) -> str:
    """The most frequent last number of the texts, "" where none has a number."""
    numbers = Counter(words[-1] for text in texts if (words := _numbers(text)))
    return numbers.most_common(1)[0][0] if numbers else ""


def _numbers(text: str) -> list[str]:
    return [word for part in text.split() if (word := part.strip("$.,:;()=")).isdigit()]


SCRIPTS = {
    script.__name__: script
    for script in (
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
