"""A process that forks while it has jobs open; it prints what its children could do, and what it could do afterwards.

python -m tests.backend.forked_child DIRECTORY
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import statebackend as sb
from statebackend._portal import Portal
from statebackend.errors import ForkedProcessError
from statebackend.ids import Handle
from tests.knobs import settings_with

CHILD_S_MAX: Final = 20
"""The kernel ends a child that hangs, so a hang is a failed test."""


def forked(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `work` returns in a forked child; "hangs" if it does not end."""
    readable, writable = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(CHILD_S_MAX)
        os.write(writable, json.dumps(work()).encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    found: dict[str, str] = json.loads(answer) if answer else {"child": "hangs"}
    return found


def outcome(call: Callable[[], Coroutine[Any, Any, object]]) -> str:
    """The error of a coroutine on a loop of the child's own, or "done"."""
    try:
        asyncio.run(call())
    except ForkedProcessError as error:
        return "spawn" if "spawn" in str(error) else f"says nothing of spawn: {error}"
    except Exception as error:  # noqa: BLE001  # told
        return repr(error)
    return "done"


def settings_of(directory: Path, **changed: Any) -> sb.Settings:
    return settings_with(
        **{
            "job": "fleet",
            "primary": f"file://{directory}/primary",
            "local": (f"{directory}/local",),
            "inline_bytes_max": 0,
            **changed,
        }
    )


def files_in(directory: Path) -> str:
    """What lies in the primary and in the local root."""
    return str(sorted(str(path) for path in directory.rglob("*") if "scratch" not in path.parts))


async def opened(settings: sb.Settings) -> None:
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 99


async def whole_job(directory: Path, **changed: Any) -> dict[str, str]:
    """A backend of the whole job, which the child has too."""
    settings = settings_of(directory, **changed)
    async with sb.open_backend(settings) as backend:
        state = backend.value_state("n", int)
        state["k"] = 1
        await backend.checkpoint(1)
        state["k"] = 2

        def work() -> dict[str, str]:
            return {
                "checkpoint": outcome(lambda: backend.checkpoint(2)),
                "close": outcome(backend.close),
                "files": files_in(directory),
            }

        before = files_in(directory)
        found = forked(work)
        found["files"] = "same" if found.get("files") == before else f"not {before}"
        await backend.checkpoint(2)
    async with sb.open_backend(settings) as backend:
        found["parent"] = str(backend.value_state("n", int)["k"])
        assert backend.newest is not None
        found["sequence"] = str(backend.newest.sequence)
    return found


async def owner(directory: Path) -> dict[str, str]:
    """A coordinator and an owner."""
    settings = settings_of(directory, max_parallelism=1)
    async with (
        sb.owners.open_coordinator(settings) as coordinator,
        sb.open_backend(settings, key_groups=sb.owners.KeyGroupRange(0, 0)) as backend,
    ):
        backend.value_state("n", int)["k"] = 1
        snapshot = await backend.snapshot(1)
        found = forked(
            lambda: {
                "snapshot": outcome(lambda: backend.snapshot(2)),
                "commit": outcome(lambda: coordinator.commit(1, [snapshot])),
            }
        )
        await coordinator.commit(1, [snapshot])
        await backend.notify_complete(1)
    return found


async def committed(settings: sb.Settings) -> None:
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1)


async def follower(directory: Path) -> dict[str, str]:
    """A follower, whose memory the child has, and whose loop it has not."""
    settings = settings_of(directory)
    await committed(settings)
    async with sb.follow(settings) as followed:
        values = followed.value_state("n", int)

        async def read() -> None:
            values["k"]

        found = forked(
            lambda: {
                "read": outcome(read),
                "wait": outcome(lambda: followed.wait_for(batch_id=1)),
                "promote": outcome(followed.promote),
            }
        )
        assert values["k"] == 1
    return found


def background(directory: Path) -> dict[str, str]:
    """A follower on a thread of the parent's: the child would wait for it for ever."""
    settings = settings_of(directory)
    asyncio.run(committed(settings))
    with sb.follow_in_background(settings) as followed:

        async def ask() -> None:
            followed.ask(lambda each: each.position)

        async def close() -> None:
            followed.close()

        found = forked(lambda: {"ask": outcome(ask), "close": outcome(close)})
        assert followed.position.checkpoint_id == 1
    return found


async def cache(directory: Path) -> dict[str, str]:
    """A download cache, whose files are the parent's."""
    settings = settings_of(directory, cache_dir=str(directory / "cache"))
    await opened(settings)
    async with sb.owners.open_download_cache(settings) as cache:
        found = forked(lambda: {"get": outcome(lambda: cache.get(Handle("segments/none", 0, 1, 0)))})
        found["directories"] = str(len([path for path in (directory / "cache").iterdir() if path.is_dir()]))
    return found


async def opens_anew(directory: Path, *, table: str, before: str) -> dict[str, str]:
    """A child that opens a job of its own, after its parent has opened one with the table `before`, and closed it."""
    await opened(settings_of(directory / "parent", table=before))
    return forked(lambda: {"open": outcome(lambda: opened(settings_of(directory / "child", table=table)))})


async def unwinds(directory: Path) -> dict[str, str]:
    """A child that leaves the context of its parent, as `sys.exit` in it would."""
    settings = settings_of(directory, table="rocksdb", table_dir=str(directory / "tables"))
    context = sb.open_backend(settings)
    backend = await context.__aenter__()
    backend.value_state("n", int)["k"] = 1
    await backend.checkpoint(1)
    backend.value_state("n", int)["k"] = 2
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_S_MAX)
        try:
            await context.__aexit__(None, None, None)
        except BaseException:  # noqa: BLE001  # whatever it is, the child ends
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)  # noqa: ASYNC222  # the alarm bounds it
    await backend.checkpoint(2)
    await context.__aexit__(None, None, None)
    return {"hangs": str(os.WIFSIGNALED(status)), "newest": str(backend.newest and backend.newest.checkpoint_id)}


def exits(directory: Path) -> dict[str, str]:
    """Children that end by `sys.exit`, as scripts do: beside an open job, and after RocksDB was closed."""
    settings = settings_of(directory, table="rocksdb", materialize_interval_s=0.001)
    with Portal() as portal:
        job = portal.hold(sb.open_backend(settings))
        job.wait()
        backend = job.result()
        state = backend.value_state("n", int)
        for checkpoint_id in range(1, 4):
            state.put_many(list(map(str, range(5000))), list(range(5000)))
            portal.call(backend.checkpoint, checkpoint_id)
        items = iter(state.items())
        next(items)

        def use() -> None:
            try:
                state["k"] = next(items)[1]
            except ForkedProcessError:
                sys.exit(3)

        found = {"beside": status_of(use)}
        job.close()
    return {**found, "after": status_of(lambda: sys.exit(4))}


def status_of(work: Callable[[], None]) -> str:
    """The exit status of a forked child that does `work`."""
    if (child := os.fork()) == 0:
        signal.alarm(CHILD_S_MAX)
        work()
        sys.exit("refused nothing")
    _, status = os.waitpid(child, 0)
    return str(os.waitstatus_to_exitcode(status))


SCENARIOS: Final[dict[str, Callable[[Path], Awaitable[dict[str, str]]]]] = {
    "heap": whole_job,
    "heap, inline": lambda directory: whole_job(directory, inline_bytes_max=65536),
    "owner": owner,
    "cache": cache,
    "follower": follower,
    "rocksdb after heap": lambda directory: opens_anew(directory, table="rocksdb", before="heap"),
    # From here on this process has used RocksDB.
    "heap after rocksdb": lambda directory: opens_anew(directory, table="heap", before="rocksdb"),
    "rocksdb after rocksdb": lambda directory: opens_anew(directory, table="rocksdb", before="rocksdb"),
    "rocksdb": lambda directory: whole_job(directory, table="rocksdb"),
    "unwinds": unwinds,
}


async def _main() -> dict[str, dict[str, str]]:
    return {name: await scenario(Path(sys.argv[1], name)) for name, scenario in SCENARIOS.items()}


if __name__ == "__main__":
    told = asyncio.run(_main())
    told["background"] = background(Path(sys.argv[1], "background"))
    told["exits"] = exits(Path(sys.argv[1], "exits"))
    print(json.dumps(told))
