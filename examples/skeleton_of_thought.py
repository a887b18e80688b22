"""Skeleton of thought: first the headings, then all paragraphs at the same time.

    python examples/skeleton_of_thought.py "keeping bees"

After Ning et al., arXiv 2307.15337: the answer takes as long as its longest paragraph.
"""

from __future__ import annotations

import sys

from _frame import frame
from pydantic import BaseModel, Field

import stolon as sl


class Skeleton(BaseModel):
    headings: list[str] = Field(min_length=3, max_length=3)


@sl.function
def article(s: sl.ProgramState, topic: str) -> None:
    s += sl.user(f"Give the three headings of an article about {topic}, as JSON.")
    s += sl.assistant(sl.gen("skeleton", schema=Skeleton, max_tokens=60, close_at_budget=True))
    headings = s.value("skeleton").headings
    branches = s.fork(len(headings))
    branches += [
        sl.user(f"Write the paragraph “{heading}” in two sentences.") for heading in headings
    ]
    branches += sl.assistant(sl.gen("paragraph", max_tokens=48, stop="\n"))
    s["sections"] = [(h, branch["paragraph"]) for h, branch in zip(headings, branches, strict=True)]


def main() -> None:
    topic = " ".join(sys.argv[1:]) or "the moon"
    state = article.run(topic, temperature=0.3, seed=2)
    for heading, paragraph in state["sections"]:
        print(f"## {heading}\n{paragraph.strip()}\n")
    print(state.trace)


if __name__ == "__main__":
    with frame():
        main()
