"""Keeps a table at a state's newest commit: once, for ever, or as long as a sink beside it runs."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypedDict, Unpack

import anyio

from statebackend._keywords import keywords_of
from statebackend._mirroring.mirror_report import MirrorReport
from statebackend._mirroring.mirroring import Mirroring
from statebackend._mirroring.mirrors import Mirror
from statebackend._observers import Observers
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.progress import Tell
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.abc.clock import SystemClock
from statebackend.settings import Settings

_logger = logging.getLogger(__name__)

PAUSES_MAX: Final = 32
"""How many times as long the pause between two looks may get, where one after the other fails."""


class HowToMirror(TypedDict, total=False):
    """The keywords of `mirror_once`, which says what they mean, for ever as for one time."""

    anew: bool
    store: ObjectStore | None
    clock: Clock | None
    observer: Observer | None
    tell: Tell


@asynccontextmanager
async def open_mirroring(
    settings: Settings,
    mirror: Mirror,
    *,
    anew: bool = False,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    tell: Tell = lambda _: None,
) -> AsyncGenerator[Mirroring]:
    """Open the job's primary and the target. Raises as either."""
    async with open_job_primary(settings, store) as primary, mirror.target.opened(settings):
        yield Mirroring(
            primary,
            mirror,
            clock=clock or SystemClock(),
            observer=Observers(observer or Observer()),
            tell=tell,
            anew=anew,
        )


@keywords_of(HowToMirror, open_mirroring)
async def mirror_once(settings: Settings, mirror: Mirror, **how: Unpack[HowToMirror]) -> MirrorReport:
    """Bring the mirror's table to the newest commit of the job, beside a stream or without one; fences nobody.

    It writes to the table, and its steps into the job's primary, where it needs rights to `mirrors/`. `anew`: start
    over from the whole state. A call that is cancelled, or a process that is killed, leaves a step that the next call
    takes again; two at once are fine.

    Raises `InputError` for a job without a checkpoint, `MirrorSchemaError`, `WrongMirrorError`, `KeyTypeError`, and
    what reading a state and the target raise.
    """
    async with open_mirroring(settings, mirror, **how) as mirroring:
        await mirroring.catch_up()
        return mirroring.report


@keywords_of(HowToMirror, open_mirroring)
async def keep_mirrored(settings: Settings, mirror: Mirror, **how: Unpack[HowToMirror]) -> None:
    """As `mirror_once`, for ever: a look every `mirror.every_s` seconds. An error is logged and told, and tried again.

    Ends when it is cancelled.
    """
    await run_mirror(settings, mirror, anyio.Event(), **how)


async def run_mirror(settings: Settings, mirror: Mirror, ended: anyio.Event, **how: Unpack[HowToMirror]) -> None:
    """As `keep_mirrored`, until `ended` is set: then it carries over what has been committed, or fails once more."""
    observers = how["observer"] = Observers(how.get("observer") or Observer())
    failures, told, is_last = 0, "", False
    while not is_last:
        try:
            async with open_mirroring(settings, mirror, **how) as mirroring:
                while not is_last:
                    is_last = ended.is_set()
                    await mirroring.catch_up()
                    how["anew"], failures, told = False, 0, ""
                    if not is_last:
                        await _pause(mirror.every_s, ended)
        except Exception as error:  # noqa: BLE001  # whatever a target raises: it must not end the stream beside it
            failures += 1
            if str(error) != told:
                told = str(error)
                _logger.warning("mirror %s fails, and is tried again: %s", mirror.name, error)
            observers.mirror_failed(mirror.name, error)
            if not is_last:
                await _pause(mirror.every_s * min(2**failures, PAUSES_MAX), ended)


async def _pause(seconds: float, ended: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await ended.wait()
