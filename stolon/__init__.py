"""Stolon: structured generation, a language and the runtime built with it."""
