"""What may come next: grammars compiled against a vocabulary, masks, forced runs.

Knows token bytes and nothing of models, schedulers or programs.
"""

import os

from stolon.constrained.closing import Closer
from stolon.constrained.compiler import GrammarCompiler
from stolon.constrained.completions import ClosingTable
from stolon.constrained.json_text import parse_json
from stolon.constrained.limits import CompileLimits
from stolon.constrained.masks import Mask, MaskPool
from stolon.constrained.matching import Grammar, Matcher
from stolon.constrained.spec import GrammarKind, GrammarSpec
from stolon.constrained.turns import short_turns
from stolon.constrained.vocabulary import Vocabulary

__all__ = [
    "Closer",
    "ClosingTable",
    "CompileLimits",
    "Grammar",
    "GrammarCompiler",
    "GrammarKind",
    "GrammarSpec",
    "Mask",
    "MaskPool",
    "Matcher",
    "Vocabulary",
    "parse_json",
    "short_turns",
]

# Read by llguidance when it makes its first error; it makes one for each branch of a schema that no value
# satisfies. With the traces that RUST_BACKTRACE=1 asks for, they are a fifth of a compilation (measured).
# Panics still have theirs.
os.environ.setdefault("RUST_LIB_BACKTRACE", "0")
