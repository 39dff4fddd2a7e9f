"""Bytes at keys: where the primary and the local copy really lie.

`memory.py` is the smallest store that keeps the contract of `ObjectStore`, `local.py` keeps it on a file system and
through a power cut. A store of your own implements `statebackend.abc.ObjectStore`; `statebackend.testing` proves it.
"""

from statebackend.objectstore.local import LocalStore
from statebackend.objectstore.memory import MemoryStore, open_memory_store

__all__ = ["LocalStore", "MemoryStore", "open_memory_store"]
