"""A million keys from the local copy, beside reading the same files and decoding all that is in them in one go.

    python -m benchmarks restore.decoding --sizes keys=50000     in seconds

Envelope. Bare, each file is read and decoded into columns of keys and bytes, which stay: 0.1 to 0.15 µs a key, half of
which is the memory that the kernel has to give. Ours is that, a look at which key groups there are, and a dictionary
that grows to a million entries: they are spread over more than the processor's caches hold, so each costs two or three
misses (0.2 µs). That makes three times as much, and the dictionary, which any state needs, is most of it: over a bare
decode that ends in a dictionary it should be 1.2 times.

Measured is CPU time, since a restore has several threads and others may have the core; in a process of its own each
time, as a restore is. Uncompressed, so that unpacking does not make the ratio look better.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report, ratio
from benchmarks.restore.parts import JOB, directory, settings_of, write, write_bases
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.parts import decode_parts
from statebackend._codec.frame import HEAD_BYTES
from statebackend._codec.segment import MAGIC, read_index

CHECKPOINTS = 20


def run(report: Report, *, keys: int = 1_000_000, rounds: int = 5) -> None:
    """Our CPU time over that of a bare decode: of a changelog, and of the bases that take its place."""
    with directory() as parent:
        settings = _settings(parent)
        anyio.run(partial(write, settings, keys=keys, checkpoints=CHECKPOINTS))
        compare = partial(_compare, report, parent, keys, rounds)
        compare(f"{CHECKPOINTS} checkpoints")
        anyio.run(write_bases, settings)
        compare("bases")


def _settings(parent: Path) -> sb.Settings:
    return settings_of(parent, compression="none")


def _compare(report: Report, parent: Path, keys: int, rounds: int, source: str) -> None:
    anyio.run(_open, _settings(parent))
    samples = report.contest(
        f"a restore from {source}",
        "s",
        {name: partial(_in_child, name, parent, keys) for name in CONTESTANTS},
        rounds=rounds,
        keys=keys,
    )
    for bare, limit in (("bare decode", 3.0), ("bare decode into a dictionary", 1.2)):
        overhead = ratio(samples["ours"], samples[bare])
        report.add(
            Line(
                f"restore of {keys:,} keys from the local copy of {source}, over a {bare} of the same files",
                f"at most {limit:g}x",
                overhead.median,
                "x",
                limit,
                detail=f"seconds: ours {samples['ours']}, bare {samples[bare]}; ratio {overhead}",
            )
        )


def _in_child(contestant: str, parent: Path, keys: int) -> float:
    command = [sys.executable, "-m", __name__, contestant, str(parent), str(keys)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def _open(settings: sb.Settings) -> None:
    async with sb.open_backend(settings) as backend:
        assert backend.restored is not None
        assert len(_files_of(settings)) == backend.restored.files_local


async def _restore(settings: sb.Settings, keys: int) -> float:
    begun = time.process_time()
    async with sb.open_backend(settings, read_only=True) as backend:
        took = time.process_time() - begun
        assert backend.restored is not None
        assert (backend.restored.changes, backend.restored.files_primary) == (keys, 0)
    return took


def _decode_all(settings: sb.Settings, keep: Callable[[Iterator[Changes]], object]) -> float:
    files = _files_of(settings)
    begun = time.process_time()
    kept = keep(_bare(files))
    took = time.process_time() - begun
    del kept  # is not part of it
    return took


def _into_a_dictionary(parts: Iterator[Changes]) -> dict[sb.Key, bytes]:
    entries: dict[sb.Key, bytes] = {}
    for part in parts:
        assert isinstance(part, KeyedChanges)
        entries.update(zip(part.keys, part.data, strict=True))
    return entries


def _files_of(settings: sb.Settings) -> Sequence[Path]:
    """The local copies of segments. Opening the job has left none but those that its newest commit needs."""
    lying = Path(settings.local[0], f"job_{JOB}", "taskowned").rglob("*")
    return [path for path in lying if path.is_file() and path.read_bytes().startswith(MAGIC)]


def _bare(files: Sequence[Path]) -> Iterator[Changes]:
    for file in files:
        view = memoryview(file.read_bytes())
        for entry in read_index(view, file.name):
            yield from decode_parts(view[entry.offset + HEAD_BYTES + len(entry.log_id) : entry.offset + entry.length])


CONTESTANTS: Mapping[str, Callable[[sb.Settings, int], float]] = {
    "ours": lambda settings, keys: anyio.run(_restore, settings, keys),
    "bare decode": lambda settings, _keys: _decode_all(settings, list),
    "bare decode into a dictionary": lambda settings, _keys: _decode_all(settings, _into_a_dictionary),
}


if __name__ == "__main__":
    print(CONTESTANTS[sys.argv[1]](_settings(Path(sys.argv[2])), int(sys.argv[3])))
