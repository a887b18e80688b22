"""A panel of judges: each reads the same essay in a fork, and a join brings their notes back.

python examples/judges.py path/to/essay.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

from _frame import frame

import stolon as sl

ESSAY = (
    "Libraries should stay open at night. Many people work by day and have no quiet room at home. "
    "A lit reading room costs a city little, and it gives a great deal."
)
DIMENSIONS = ("clarity", "originality", "evidence")
GRADES = (" poor", " fair", " good", " excellent")


@sl.function
def panel(s: sl.ProgramState, essay: str) -> None:
    s += sl.system("You judge essays.") + sl.user(f"Here is an essay:\n{essay}")
    judges = s.fork(len(DIMENSIONS))
    judges += lambda i: sl.user(f"Comment on its {DIMENSIONS[i]} in one sentence.")
    judges += sl.assistant(sl.gen("comment", max_tokens=40, stop="\n"))
    judges += lambda i: sl.user(f"How is its {DIMENSIONS[i]}, in a word?")
    judges += sl.assistant("It is" + sl.select("grade", GRADES, temperature=1.0))
    judges.join()  # `comment` and `grade` are lists now, with one entry for each judge
    s += sl.user("The judges say:\n" + "\n".join(s["comment"]) + "\nSum up in one sentence.")
    s += sl.assistant(sl.gen("summary", max_tokens=40, stop="\n"))


def main() -> None:
    essay = Path(sys.argv[1]).read_text(encoding="utf-8") if sys.argv[1:] else ESSAY
    state = panel.run(essay, temperature=0.3, seed=1)
    for dimension, grade, comment in zip(DIMENSIONS, state["grade"], state["comment"], strict=True):
        print(f"{dimension:<12} {grade.strip():<10} {comment.strip()}")
    print(f"{'together':<23} {state['summary'].strip()}")


if __name__ == "__main__":
    with frame():
        main()
