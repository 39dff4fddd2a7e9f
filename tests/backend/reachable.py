"""What a sweep has to leave of a job whose every object is old, said from the log alone."""

from collections.abc import Set as AbstractSet

from statebackend._codec.commit import Commit
from statebackend._log.names import HINT_KEY, entry_key, floor_key
from statebackend.ids import RocksDBFile
from tests.invariants import Objects, commits_of, read_log


def newest_of(objects: Objects, job: str) -> Commit:
    """The newest commit of a job on which there is one branch."""
    return commits_of(read_log(objects, job))[-1]


def reachable_keys(objects: Objects, job: str, *, retained: int) -> AbstractSet[str]:
    """The newest `retained` commits and what follows the oldest of them, what these point into, and two marks."""
    log = read_log(objects, job)
    floor = commits_of(log)[-retained:][0].sequence
    kept = [entry for entry in log if entry.sequence >= floor]
    pointed_into = frozenset[str]().union(*(commit.segments() for commit in commits_of(kept)))
    return {HINT_KEY, floor_key(floor), *pointed_into, *(entry_key(entry.sequence) for entry in kept)}


def rocksdb_files(commit: Commit) -> dict[str, RocksDBFile]:
    """The files of the commit's RocksDB bases, by where their local copies lie below a job's directory."""
    return {
        f"op_state_kg_{base.owner.first}_{base.owner.last}/chk_{base.checkpoint_id}/{file.name}": file
        for part in commit.ranges
        for base in part.rocksdb
        for file in base.files
    }


def assert_rocksdb_copies_are_of_use(copies: Objects, primary: Objects, job: str) -> None:
    """Directories of RocksDB bases are whole, to the byte, and of a commit that is retained; the newest one's is there.

    `copies`: what lies in them, by paths below a job's directory.
    """
    expected: dict[str, RocksDBFile] = {}
    for commit in commits_of(read_log(primary, job)):
        files = rocksdb_files(commit)
        if commit.sequence == newest_of(primary, job).sequence or any(path in copies for path in files):
            expected |= files
    found = {path: content for path, content in copies.items() if not path.endswith("/snapshot")}
    assert found == {path: primary[file.handle.key] for path, file in expected.items()}
    assert copies.keys() - found.keys() == {f"{path.rpartition('/')[0]}/snapshot" for path in expected}


def assert_copies_are_of_use(copies: Objects, primary: Objects, job: str) -> None:
    """Each is equal to what the primary has, and of what the newest commit needs there is one."""
    newest = newest_of(primary, job)
    assert copies == {key: primary.get(key) for key in copies}
    elsewhere = {file.handle.key for file in rocksdb_files(newest).values()}
    assert copies.keys() >= {entry_key(newest.sequence), *newest.segments()} - elsewhere
