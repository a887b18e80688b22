"""What may come next: grammars compiled against a vocabulary, masks, forced runs.

Knows token bytes and nothing of models, schedulers or programs.
"""

from stolon.constrained.spec import GrammarKind, GrammarSpec

__all__ = ["GrammarKind", "GrammarSpec"]
