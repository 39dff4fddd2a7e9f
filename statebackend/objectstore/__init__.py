"""Object stores: bytes at keys. The primary and the local copy are stored in them.

`memory.py` is the smallest store that keeps the contract of `ObjectStore`, `local.py` keeps it on a file system and
through power cuts, `s3/` in a bucket, `azure/` in a container, and `cloud/` has what these two share. A store of your
own implements `statebackend.abc.ObjectStore`; `statebackend.testing` has the tests that prove it.
"""

from statebackend.objectstore.local import LocalStore
from statebackend.objectstore.memory import MemoryStore, open_memory_store

__all__ = ["LocalStore", "MemoryStore", "open_memory_store"]
