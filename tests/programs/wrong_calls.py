"""More slips: calls with arguments that cannot be meant, values beyond a limit, a backup put back under a stream."""

import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

import statebackend as sb
from statebackend.errors import (
    InputError,
    KeyTypeError,
    SavepointExistsError,
    SettingsError,
    StateBackendError,
    StateGoneError,
)
from tests.programs.looking import refused
from tests.programs.program import OPERATOR, Declared, Slip
from tests.programs.surroundings import attend, copy_tree

if TYPE_CHECKING:
    from tests.programs.running import Running

OPERATOR_BYTES = 4 << 20
DEEP = 16


def wrong_call(running: "Running", step: Slip) -> bool | None:
    """One of many calls with arguments that cannot be meant. Nothing must come of it but an error."""
    if not running.kept:
        return False
    calls = _wrong_calls(running)
    with refused(InputError, SettingsError):
        attend(calls[(5 * step.batch.fate + running.batch_id) % len(calls)]())
    return None


def _wrong_calls(running: "Running") -> Sequence[Callable[[], Awaitable[object]]]:
    settings, other = running.settings, msgspec.structs.replace(running.settings, job="misspelt")
    name = next((each.name for each in running.job.states if each.name in running.held.known), "none")
    kept = max(running.kept)

    async def opened(**options: Any) -> None:
        async with sb.open_backend(settings, read_only=True, **options):
            pass

    async def followed(settings: sb.Settings, **options: Any) -> None:
        async with sb.follow(settings, **options):
            pass

    async def read(state: str, **options: Any) -> None:
        async with sb.read_batches(settings, state, **options):
            pass

    return (
        lambda: sb.erase(settings, []),
        lambda: sb.erase(settings, ["a"], states=["nobody's"]),
        lambda: sb.savepoint(settings, "a/b"),
        lambda: sb.clone(other, from_=settings, keys=0.0),
        lambda: sb.clone(other, from_=settings, states=["nobody's"]),
        lambda: sb.seed(settings, lambda backend: backend.value_state("n", int), {"n": {"a": 1}}),
        lambda: opened(checkpoint_id=1 << 63),
        lambda: opened(checkpoint_id=kept, savepoint="first"),
        lambda: followed(other),
        lambda: followed(settings, every_s=0.0),
        lambda: (
            followed(settings, key_groups=sb.owners.KeyGroupRange(0, 32_767))
            if running.held.groups < 32_768
            else opened(at=0.0)
        ),
        lambda: sb.mirror_once(other, sb.Mirror(name, to=running.home.parent / "nowhere")),
        lambda: sb.mirror_once(settings, sb.Mirror("nobody's", to=running.home.parent / "nowhere")),
        lambda: sb.history_of(settings, "nobody's", "a"),
        lambda: sb.history_of(settings, name, "a", since=time.time() * 1000),
        lambda: read("nobody's"),
        lambda: read(name, at=time.time() * 1000),
        lambda: read(name, at="2024-01-01T00:00:00"),
        lambda: read(name, checkpoint_id=kept, at=time.time()),
        lambda: read(name, keys="abc"),
        lambda: read(name, key_groups=(0, running.held.groups)),
    )


def beyond_a_limit(running: "Running", step: Slip) -> bool | None:
    """By hand: a value exactly at a limit is taken, one beyond it refused. Nothing is committed."""
    running.sink.close()
    key: Any = "a"
    for _ in range(DEEP):
        key = (key,)

    async def open_it() -> None:
        async with sb.open_backend(running.settings) as backend:
            state = backend.value_state("limits", int)
            for good, bad in (
                ((1 << 63) - 1, 1 << 63),
                (-(1 << 63), -(1 << 63) - 1),
                (key, (key,)),
                ("\ud7ff", "\ud800"),
            ):
                state[good] = 1
                with refused(KeyTypeError):
                    state[bad] = 1
            operator = backend.operator_state("limits of owners", bytes)
            operator.append(b"x" * (OPERATOR_BYTES // 2))
            with refused(InputError):
                operator.append(b"x" * (OPERATOR_BYTES // 2))
            assert [len(each) for each in operator] == [OPERATOR_BYTES // 2]

    attend(open_it())
    with refused(SettingsError):
        msgspec.structs.replace(running.settings, max_parallelism=32_769)
    return None


def one_name_for_two(running: "Running", step: Slip) -> bool | None:
    """Two states of a job have one name."""
    states = [each for each in running.job.states if each.kind not in (*OPERATOR, "timers")]
    if not states or (running.job.parallelism and not step.batch.items):
        return False
    other = Declared(states[0].name, "list" if states[0].kind != "list" else "value", type="int")
    job = msgspec.structs.replace(running.job, states=(*running.job.states, other))
    running.sink.close()
    running.begin_run()
    with refused(StateBackendError):
        running.sink = running.make_sink(job)
        running.sink(running.session.frame(running.table(step.batch, raises=False)), running.batch_id)
    return None


def savepoint_twice(running: "Running", step: Slip) -> bool | None:
    """A name is given to another commit as well."""
    for name, kept in running.savepoints.items():
        if kept.checkpoint_id != running.line[-1].checkpoint_id:
            with refused(SavepointExistsError):
                attend(sb.savepoint(running.settings, name))
            return None
    return False


def backup_put_back(running: "Running", step: Slip) -> bool | None:
    """A backup of the primary is put back, of before the last batch: alone, or with the local copies of that time."""
    if not running.kept or running.line[-1].newest_batch is None:
        return False
    if running.follower is not None:
        running.follower.close()
    running.close_left()
    running.sink.close()
    backup, now = running.home.parent / "backup", running.home.parent / "now"
    backup.mkdir()
    copy_tree(running.home, backup)
    running.next_run()
    running.batch(step.batch)
    running.sink.close()
    now.mkdir()
    copy_tree(running.home, now)
    for place in ("primary", "local") if step.batch.fate % 2 else ("primary",):
        shutil.rmtree(running.home / place, ignore_errors=True)
        if (backup / place).exists():
            (backup / place).rename(running.home / place)
    running.next_run()
    with refused(StateGoneError):
        running.sink(running.frame(step.batch, running.batch_id), running.batch_id)
    running.sink.close()
    shutil.rmtree(running.home)
    now.rename(running.home)
    shutil.rmtree(backup)
    return None
