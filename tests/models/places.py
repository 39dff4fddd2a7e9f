"""Where the copies of a job lie, in the hands of a test that loses, damages and ages them."""

import asyncio
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec

import statebackend as sb
from statebackend._tasks import simulate_threads
from statebackend.objectstore import LocalStore
from statebackend.testing import CrashStore
from statebackend.testing.virtual_time import VirtualClock, VirtualTimeLoop, settle

Damage = Literal["flip", "cut", "lose"]

HOSTS = 8
NIGHT_S = 7200.0


class Places(ABC):
    """The primary, and the local copies of several hosts. All of it is on one loop, whose time is virtual."""

    clock: sb.Clock | None = None
    """`None` for that of the machine."""
    has_files = False
    """True if local copies are files."""

    def __init__(self, seed: int = 0, *, root: Path | None = None) -> None:
        self.root = root or Path(tempfile.mkdtemp(prefix="models-"))

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A loop without threads of its own: what would run in one runs in between."""
        loop = VirtualTimeLoop()
        simulate_threads(loop, anyio.lowlevel.checkpoint)
        return loop

    async def begin(self) -> None:
        """Called on the loop, first of all."""
        return

    async def end(self) -> None:
        """Called on the loop, last of all."""
        return

    async def settle(self) -> None:
        """Let everything happen that can happen now."""
        await settle()

    @abstractmethod
    def primary(self) -> sb.ObjectStore:
        """The primary as a new life sees it; the life before has ended."""

    @abstractmethod
    def at(self, host: int, settings: sb.Settings) -> tuple[sb.Settings, dict[str, Any]]:
        """Settings and options by which a backend has its local copies on that host."""

    def crash(self) -> None:
        """The lives that are there end: what is under way has happened, or not."""
        return

    @abstractmethod
    def objects(self, host: int | None) -> Sequence[str]:
        """What lies on a host, or in the primary: the oldest first, wherever that can be told."""

    def lose(self, host: int) -> None:
        """A host comes back without its disk."""
        for name in self.objects(host):
            self.write(host, name, None)

    def damage(self, host: int | None, name: str, damage: Damage, position: int) -> None:
        """With another bit, cut off, or gone. `position` is taken modulo what there is."""
        content = self.read(host, name)
        position %= len(content) or 1
        if damage == "lose":
            self.write(host, name, None)
        elif damage == "cut":
            self.write(host, name, content[:position])
        elif content:
            bit = bytes([content[position] ^ (1 << position % 8)])
            self.write(host, name, content[:position] + bit + content[position + 1 :])

    @abstractmethod
    def read(self, host: int | None, name: str) -> bytes: ...

    @abstractmethod
    def write(self, host: int | None, name: str, content: bytes | None) -> None:
        """Put something else in its place, or nothing at all."""

    async def pass_night(self) -> None:
        """Everything that there is becomes old."""
        await anyio.sleep(NIGHT_S)

    def remove(self) -> None:
        """Nothing of it stays."""
        shutil.rmtree(self.root, ignore_errors=True)


class InMemory(Places):
    """Crash stores: a write that is under way when a life ends has happened or not; on a local disk, in part too."""

    def __init__(self, seed: int = 0, *, root: Path | None = None) -> None:
        super().__init__(seed, root=root)
        self._seed = seed

    async def begin(self) -> None:
        self.clock = VirtualClock()
        self._primary = CrashStore(seed=self._seed, clock=self.clock)
        self._hosts = [CrashStore(seed=self._seed + 1 + host, torn=True, clock=self.clock) for host in range(HOSTS)]

    def primary(self) -> sb.ObjectStore:
        return self._primary.open()

    def at(self, host: int, settings: sb.Settings) -> tuple[sb.Settings, dict[str, Any]]:
        return settings, {"local_stores": [self._hosts[host].open()]}

    def crash(self) -> None:
        for each in (self._primary, *self._hosts):
            each.crash()

    def objects(self, host: int | None) -> Sequence[str]:
        return list(self._at(host).objects)

    def read(self, host: int | None, name: str) -> bytes:
        return self._at(host).objects[name][0]

    def write(self, host: int | None, name: str, content: bytes | None) -> None:
        objects = self._at(host).objects
        if content is None:
            del objects[name]
        else:
            objects[name] = content, objects[name][1]

    def _at(self, host: int | None) -> CrashStore:
        return self._primary if host is None else self._hosts[host]


class OnDisk(Places):
    """Directories: a file primary, and two local roots for each host, with locks and all."""

    has_files = True

    def primary(self) -> sb.ObjectStore:
        return LocalStore(self._at(None))

    def at(self, host: int, settings: sb.Settings) -> tuple[sb.Settings, dict[str, Any]]:
        roots = tuple(f"{self._at(host)}/{root}" for root in "ab")
        return msgspec.structs.replace(settings, local=roots), {}

    def objects(self, host: int | None) -> Sequence[str]:
        inside = "**/*" if host is None else "*/job_*/taskowned/**/*"
        found = (path for path in self._at(host).glob(inside) if path.is_file())
        return [str(path) for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path))]

    def read(self, host: int | None, name: str) -> bytes:
        return Path(name).read_bytes()

    def write(self, host: int | None, name: str, content: bytes | None) -> None:
        if content is None:
            Path(name).unlink()
        else:
            Path(name).write_bytes(content)

    async def pass_night(self) -> None:
        for path in self._at(None).rglob("*"):
            os.utime(path, (1.0, 1.0))

    def _at(self, host: int | None) -> Path:
        return self.root / ("primary" if host is None else f"host{host}")
