"""What the eight programs are run on: the same items on every machine, new ones for each batch.

Every text begins with the number of the batch, so no batch finds in a cache what an earlier one
computed; within a batch items share what they would share in use: instructions and examples.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["ITEMS", "inputs"]

ITEMS = {
    "few_shot": 32,
    "chat": 16,
    "tree_of_thought": 16,
    "skeleton": 16,
    "judge": 16,
    "agent": 16,
    "character": 24,
    "self_consistency": 16,
}
"""The programs in the order of the table, and how many items a batch of each has."""

_CAPITALS = {
    "Norway": "Oslo", "Portugal": "Lisbon", "Kenya": "Nairobi", "Peru": "Lima",
    "Japan": "Tokyo", "Hungary": "Budapest", "Canada": "Ottawa", "Greece": "Athens",
    "Cuba": "Havana", "Ireland": "Dublin", "Egypt": "Cairo", "Finland": "Helsinki",
    "Chile": "Santiago", "Poland": "Warsaw", "Nepal": "Kathmandu", "Ghana": "Accra",
    "Austria": "Vienna", "Iceland": "Reykjavik", "Vietnam": "Hanoi", "Jordan": "Amman",
}  # fmt: skip
_METALS = {"iron": "Fe", "gold": "Au", "silver": "Ag", "copper": "Cu", "tin": "Sn", "lead": "Pb"}
_NAMES = ("Ada", "Bruno", "Celia", "Dmitri", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jonas")
_SURNAMES = ("Marlow", "Okafor", "Lind", "Haddad", "Petrov", "Nakano", "Duarte", "Keller")
_PLACES = ("Bergen", "Leeds", "Porto", "Zurich", "Lyon", "Trieste", "Utrecht", "Galway")
_THINGS = ("apples", "pencils", "stamps", "tiles", "bottles", "tickets", "candles", "books")
_TRADES = ("sailor", "baker", "teacher", "smith", "doctor", "farmer")
_MOODS = ("calm", "angry", "cheerful", "worried")
_GOODS = ("a brass lamp", "a torn map", "two rings", "a knife", "a letter", "a tin whistle")
_TOPICS = (
    "learning to cook", "planting a small garden", "saving energy at home", "keeping bees",
    "travelling by night train", "repairing old furniture", "reading with children",
    "cycling to work", "living near the sea", "starting a choir",
)  # fmt: skip
_ARGUMENTS = (
    "Most people wait for the right moment, and the right moment does not come by itself.",
    "A survey of two hundred households found that four in ten had tried and given up.",
    "What helps is a fixed hour in the week, and somebody who asks how it went.",
    "The cost is often named as the reason, yet the tools can be borrowed in every town.",
    "My neighbour began with nothing but a notebook, and now others come to ask her.",
    "It would be wrong to promise quick success; the first year is mostly mistakes.",
    "Still, whoever keeps at it will see that the mistakes are the cheapest lessons.",
)


def inputs(program: str, batch: int, count: int | None = None) -> list[dict[str, Any]]:
    """The items of one batch: keyword arguments of the program."""
    make, head = _MAKERS[program], f"Batch {batch}."
    numbers = range(ITEMS[program] if count is None else count)
    return [make(head, random.Random(f"{program} {batch} {number}")) for number in numbers]


def _multiple_choice(draw: random.Random) -> tuple[str, str]:
    """A question with four options, and the letter of the right one."""
    if draw.random() < 0.7:
        key = draw.choice(sorted(_CAPITALS))
        facts, question = _CAPITALS, f"Which city is the capital of {key}?"
    else:
        key = draw.choice(sorted(_METALS))
        facts, question = _METALS, f"Which symbol stands for the metal {key}?"
    options = [*draw.sample(sorted(set(facts.values()) - {facts[key]}), 3), facts[key]]
    draw.shuffle(options)
    lines = [f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True)]
    return "\n".join([f"Question: {question}", *lines]), "ABCD"[options.index(facts[key])]


def _sum(draw: random.Random) -> tuple[str, str, int]:
    """A small problem, its reasoning and its result."""
    name, things = draw.choice(_NAMES), draw.choice(_THINGS)
    boxes, each, gone = draw.randint(3, 9), draw.randint(4, 12), draw.randint(2, 9)
    problem = (
        f"{name} has {boxes} boxes with {each} {things} in each box and gives {gone} {things} to a "
        f"friend. How many {things} are left?"
    )
    reasoning = (
        f"{boxes} boxes with {each} {things} each are {boxes} * {each} = {boxes * each} {things}. "
        f"Without {gone} there are {boxes * each} - {gone} = {boxes * each - gone}. "
        f"The answer is {boxes * each - gone}."
    )
    return problem, reasoning, boxes * each - gone


def _story(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Some sentences about a person, and the sheet that says the same."""
    first, second = draw.sample(_GOODS, 2)
    sheet = {
        "name": f"{draw.choice(_NAMES)} {draw.choice(_SURNAMES)}",
        "age": draw.randint(19, 80),
        "trade": draw.choice(_TRADES),
        "home": draw.choice(_PLACES),
        "alive": draw.random() < 0.7,
        "mood": draw.choice(_MOODS),
        "belongings": [first, second],
        "enemy": f"{draw.choice(_NAMES)} {draw.choice(_SURNAMES)}",
    }
    end = "lives there to this day" if sheet["alive"] else "died there in the last winter"
    story = (
        f"Story: {sheet['name']}, a {sheet['mood']} {sheet['trade']} of {sheet['age']} years, came to "
        f"{sheet['home']} with {first} and {second}, never forgave {sheet['enemy']}, and {end}."
    )
    return story, sheet


def _few_shot(head: str, draw: random.Random) -> dict[str, Any]:
    shown = random.Random(head)
    examples = [f"{head} Each question has one right answer."]
    examples += [
        f"{q}\nAnswer: {letter}" for q, letter in (_multiple_choice(shown) for _ in range(10))
    ]
    return {"examples": "\n\n".join(examples), "question": _multiple_choice(draw)[0]}


def _chat(head: str, draw: random.Random) -> dict[str, Any]:
    topic, place = draw.choice(_TOPICS), draw.choice(_PLACES)
    return {
        "instructions": f"{head} You advise the readers of a town's newspaper. You are friendly and "
        "practical, you never name brands, you give at most three pieces of advice at a time, you say "
        "so when you do not know something, and you end with a question to the reader.",
        "first": f"I live in {place} and think about {topic}. Where should I begin?",
        "second": f"And what will it cost me in the first {draw.randint(2, 11)} months?",
    }


def _tree_of_thought(head: str, draw: random.Random) -> dict[str, Any]:
    return {
        "instructions": f"{head} You solve problems. First you make a plan in one or two sentences "
        "without calculating, then you carry it out when you are asked to.",
        "problem": f"{_sum(draw)[0]} Make a plan.",
    }


def _skeleton(head: str, draw: random.Random) -> dict[str, Any]:
    topic, place = draw.choice(_TOPICS), draw.choice(_PLACES)
    return {
        "instructions": f"{head} You write in two steps: first an outline of four numbered points of a "
        "few words each, then, when asked for a point, one paragraph about that point alone.",
        "question": f"What should people in {place} know about {topic}? Outline four points.",
    }


def _judge(head: str, draw: random.Random) -> dict[str, Any]:
    topic, name = draw.choice(_TOPICS), draw.choice(_NAMES)
    argument = " ".join(draw.sample(_ARGUMENTS, 6))
    return {
        "instructions": f"{head} You judge essays of a school contest. You are strict but kind, you look "
        "at one dimension at a time, and you give reasons from the text.",
        "essay": f"An essay by {name} about {topic}: {argument}",
    }


def _turns(draw: random.Random) -> tuple[str, list[tuple[str, str, str]], str]:
    """A question, recorded (thought, action, observation) turns, and the answer."""
    country = draw.choice(sorted(_CAPITALS))
    city, people, area = _CAPITALS[country], draw.randint(200, 9000), draw.randint(20, 900)
    return (
        f"How many thousand people live on a square kilometre of the capital of {country}?",
        [
            (
                f"I need to know the capital of {country} first.",
                f"search[capital of {country.lower()}]",
                f"{city} is the capital of {country} and the seat of its government.",
            ),
            (
                f"Now I need the population and the area of {city}.",
                f"lookup[{city.lower()}]",
                f"{city} had {people} thousand inhabitants on {area} square kilometres at the last count.",
            ),
            (
                "I have to divide the two numbers.",
                f"calculate[{people} by {area}]",
                f"{people / area:.2f}",
            ),
        ],
        f"{people / area:.2f} thousand people.",
    )


def _agent(head: str, draw: random.Random) -> dict[str, Any]:
    shown = random.Random(head)
    examples = [
        f"{head} Answer questions with the tools search, lookup and calculate. Think before each action."
    ]
    for _ in range(3):
        question, turns, answer = _turns(shown)
        lines = [f"Question: {question}"]
        for step, (thought, action, observation) in enumerate(turns, 1):
            lines += [f"Thought {step}: {thought}", f"Action {step}: {action}"]
            lines.append(f"Observation {step}: {observation}")
        examples.append("\n".join([*lines, f"Answer: {answer}"]))
    question, turns, _ = _turns(draw)
    return {
        "examples": "\n\n".join(examples),
        "question": question,
        "observations": [observation for _, _, observation in turns],
    }


def _character(head: str, draw: random.Random) -> dict[str, Any]:
    shown = random.Random(head)
    examples = [f"{head} Fill in a character sheet for each story."]
    examples += [
        f"{s}\nJSON: {json.dumps(sheet)}" for s, sheet in (_story(shown) for _ in range(3))
    ]
    return {"examples": "\n\n".join(examples), "story": _story(draw)[0]}


def _self_consistency(head: str, draw: random.Random) -> dict[str, Any]:
    shown = random.Random(head)
    examples = [f"{head} Solve each problem step by step."]
    for _ in range(4):
        problem, reasoning, _ = _sum(shown)
        examples.append(f"Problem: {problem}\nReasoning: {reasoning}")
    return {"examples": "\n\n".join(examples), "problem": _sum(draw)[0]}


_MAKERS: dict[str, Callable[[str, random.Random], dict[str, Any]]] = {
    "few_shot": _few_shot,
    "chat": _chat,
    "tree_of_thought": _tree_of_thought,
    "skeleton": _skeleton,
    "judge": _judge,
    "agent": _agent,
    "character": _character,
    "self_consistency": _self_consistency,
}
