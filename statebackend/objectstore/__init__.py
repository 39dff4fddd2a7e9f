"""Bytes at keys: where the primary and the local copy really lie.

`memory.py` is the smallest store that keeps the contract of `ObjectStore`, `local.py` keeps it on a file system and
through a power cut, `s3/` in a bucket. A store of your own implements `statebackend.abc.ObjectStore`, and
`statebackend.testing` proves it.
"""

from typing import Final

from statebackend.objectstore.local import LocalStore
from statebackend.objectstore.memory import MemoryStore, open_memory_store

PROBE_KEY: Final = "put-if-absent"
"""Below the job's root: the object by which a store shows that it keeps put-if-absent. Only S3 is asked for it."""

__all__ = ["PROBE_KEY", "LocalStore", "MemoryStore", "open_memory_store"]
