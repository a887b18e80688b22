"""What may come next: grammars compiled against a vocabulary, masks, forced runs.

Knows token bytes and nothing of models, schedulers or programs.
"""

from stolon.constrained.closing import Closer
from stolon.constrained.compiler import CompileLimits, GrammarCompiler
from stolon.constrained.completions import ClosingTable
from stolon.constrained.json_text import parse_json
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
