"""Few-shot classification: every label is scored exactly, in one step.

    python examples/classify.py "The soup was cold and nobody came."

The examples in front are the same for all reviews: they are computed once.
"""

from __future__ import annotations

import sys

from _frame import frame

import stolon as sl

SHOTS = (
    ("The food was wonderful and the staff were kind.", " good"),
    ("We waited an hour, and the fish was raw.", " bad"),
    ("A charming place. I will be back.", " good"),
    ("Dirty tables, rude waiter.", " bad"),
)
REVIEWS = (
    "Best pancakes in town!",
    "My steak was burnt, and they charged me twice.",
    "Lovely music, and the pasta was perfect.",
)


@sl.function
def classify(s: sl.ProgramState, review: str) -> None:
    for text, label in SHOTS:
        s += f"Review: {text}\nVerdict:{label}\n\n"
    s += f"Review: {review}\nVerdict:" + sl.select("verdict", [" good", " bad"])


def main() -> None:
    reviews = sys.argv[1:] or REVIEWS
    for review, state in zip(reviews, classify.run_batch([(r,) for r in reviews]), strict=True):
        scores = state.scores("verdict")
        sure = abs(scores[" good"] - scores[" bad"])
        print(f"{state['verdict'].strip():<5} by {sure:4.1f} nats   {review}")


if __name__ == "__main__":
    with frame():
        main()
