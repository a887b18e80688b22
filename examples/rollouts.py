"""Rollouts for reinforcement learning: groups of samples with exact log-probs and rewards.

    python examples/rollouts.py rollouts.jsonl --groups 4 --samples 8

The task: continue a counting sequence. The reward is the share of the next numbers that are right.
The same seed gives the same rollouts, bit for bit. Advantages are the rewards relative to their
group (GRPO, arXiv 2402.03300).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import stolon as sl


def prompt(start: int) -> str:
    return "Counting: " + ", ".join(str(start + i) for i in range(4)) + ","


def reward(start: int, text: str) -> float:
    """Share of the first four numbers of the text that continue the sequence."""
    found = [int(number) for number in re.findall(r"\d{1,9}", text)[:4]]
    expected = range(start + 4, start + 8)
    return sum(a == b for a, b in zip(found, expected, strict=False)) / len(expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSONL file, one line per sample")
    parser.add_argument("--groups", type=int, default=4, help="prompts")
    parser.add_argument("--samples", type=int, default=8, help="samples of each prompt")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()

    rewards: list[list[float]] = []
    with sl.Engine(args.model) as engine, args.out.open("w", encoding="utf-8") as out:
        starts = [3 + 10 * group for group in range(args.groups)]
        for group, start in enumerate(starts):
            ids = engine.tokenizer.encode(prompt(start))
            # All samples share the prompt: it is computed once.
            samples = engine.generate(
                input_ids=ids,
                n=args.samples,
                seed=args.seed + group,
                max_tokens=args.max_tokens,
                temperature=args.temperature,
                return_logprob=True,
                # The distribution that was sampled from is what an off-policy correction needs.
                logprob_mode="tempered",
            )
            samples = samples if isinstance(samples, list) else [samples]
            found = [reward(start, sample.text) for sample in samples]
            rewards.append(found)
            mean, spread = statistics.fmean(found), statistics.pstdev(found)
            for sample, value in zip(samples, found, strict=True):
                line = {
                    "group": group,
                    "prompt_ids": ids,
                    "token_ids": sample.token_ids,
                    "logprobs": [entry.logprob for entry in sample.logprobs],
                    "reward": value,
                    "advantage": (value - mean) / (spread + 1e-6),
                    "finish": sample.finish.kind,
                    "weights_version": sample.weights_version,
                    "text": sample.text,
                }
                out.write(json.dumps(line) + "\n")
                out.flush()
            best = samples[max(range(len(found)), key=found.__getitem__)]
            print(f"group {group}: mean {mean:.2f}, best {max(found):.2f}: {best.text!r}")
        stats = engine.stats()
    every = [value for group in rewards for value in group]
    if every:
        best_of_n = statistics.fmean(max(group) for group in rewards)
        print(f"mean reward {statistics.fmean(every):.3f}, best of {args.samples}: {best_of_n:.3f}")
    print(f"{stats.sampled_tokens} tokens sampled, {stats.cached_tokens} prompt tokens shared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
