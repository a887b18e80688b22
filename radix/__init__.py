"""What is already computed: prefix tree, slot pool, KV cache, eviction and leases."""

from .kv import KVCache
from .node import Node
from .pool import SlotPool
from .tree import Inserted, Match, PrefixTree

__all__ = ["Inserted", "KVCache", "Match", "Node", "PrefixTree", "SlotPool"]
