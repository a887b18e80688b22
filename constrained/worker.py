"""A process of its own that compiles what may hurt: it can be killed where a thread can't.

Started as ``python -m stolon.constrained.worker`` by `Trial`. It reads one JSON `Job` a line and answers
with one JSON `Verdict` a line; the first line says that it is ready. Its memory is limited once, the
processor time of each job by a timer whose signal ends the process. It compiles over the 256 bytes as
vocabulary: what a grammar costs to build does not depend on the vocabulary.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
from pathlib import Path

import msgspec

from stolon.constrained.compilation import compile_here
from stolon.constrained.limits import CompileLimits
from stolon.constrained.masks import MaskPool
from stolon.constrained.schema.budget import Budget
from stolon.constrained.spec import GrammarSpec
from stolon.constrained.trial import READY, Job, Verdict
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import GrammarError

__all__ = ["main"]


def main() -> None:
    """Answer jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limits = msgspec.convert(msgspec.json.decode(sys.argv[1]), CompileLimits)
    vocabulary = Vocabulary(
        [bytes((byte,)) for byte in range(256)] + [b"<end>"],
        frozenset([256]),
        frozenset([256]),
        lambda text: list(text.encode()),
    )
    compile_here(GrammarSpec(kind="json_object"), b"", vocabulary, MaskPool(257), limits)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = _address_space()
    if before:
        bound = before + limits.trial_bytes
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    _send(READY)
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        signal.setitimer(signal.ITIMER_PROF, limits.trial_cpu)
        verdict = _try(job, vocabulary, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if _address_space() > before + limits.trial_bytes // 2:
            verdict.retiring = True
        _send(msgspec.json.encode(verdict))
        if verdict.retiring:
            return


def _try(job: Job, vocabulary: Vocabulary, limits: CompileLimits) -> Verdict:
    try:
        # A pool for each job: nothing of one is left for the next.
        pool = MaskPool(vocabulary.size)
        # Time is the timer's to tell: what is refused for its steps is refused for ever.
        budget = Budget(seconds=math.inf)
        done = compile_here(job.spec, job.prefix, vocabulary, pool, limits, budget)
    except GrammarError as error:
        return Verdict(refusal=error.message, where=error.where, hint=error.hint, code=error.code)
    except MemoryError:
        return Verdict(out_of_memory=True, retiring=True)
    except Exception as error:
        return Verdict(fault=type(error).__name__)
    return Verdict(source=done.source)


def _address_space() -> int:
    """Bytes of address space in use, 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _send(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
