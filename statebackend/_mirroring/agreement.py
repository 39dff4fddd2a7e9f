"""Compares what a mirror's log and its table say of where the mirror stands, and refuses what is not its own. Pure."""

import msgspec

from statebackend._log.mirror_steps import MirrorStep
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.target import MirrorMark
from statebackend.errors import WrongMirrorError


def fit(newest: MirrorStep | None, found: MirrorMark) -> bool:
    """True if the newest step is the one that the table has or the next one, or if the table cannot tell."""
    if newest is None:
        return found.mirror_id is None
    cannot_tell = found.number is None and not found.is_empty
    return cannot_tell or found.number == newest.number or (not newest.done and _follows(newest, found))


def may_be_empty(newest: MirrorStep, found: MirrorMark) -> bool:
    """True if the table has no rows, and is right if the state had no key at the newest step. A log has one always."""
    return found.is_empty and found.mirror_id == newest.mirror_id and newest.done and newest.form == "table"


def is_slip(newest: MirrorStep, found: MirrorMark, mirror: Mirror) -> bool:
    """True for a step of another mirror that was given this name, and has failed: the name is free."""
    wanted = mirror.state, mirror.form, mirror.target.place, mirror.key_as_json
    differs = (newest.state, newest.form, newest.target, newest.key_as_json) != wanted
    return not newest.has_name and differs and found.mirror_id != newest.mirror_id


def check(newest: MirrorStep | None, found: MirrorMark, mirror: Mirror, *, may_move: bool) -> None:
    """Raise `WrongMirrorError` for a log or a table of another mirror. `may_move`: to a table in another place."""
    place = mirror.target.place
    if newest is not None:
        if (newest.state, newest.form) != (mirror.state, mirror.form):
            raise WrongMirrorError(
                "the job has another mirror of that name: give this one its own name",
                name=mirror.name,
                state=newest.state,
                form=newest.form,
            )
        if newest.target != place and not may_move:
            raise WrongMirrorError(
                "the mirror of that name writes to another table: give this one its own name, or move it there with"
                " anew=True",
                name=mirror.name,
                target=place,
                target_mirrored=newest.target,
            )
        if newest.key_as_json != mirror.key_as_json:
            raise WrongMirrorError(
                "the mirror's table has its keys in the other form: give key_as_json as before, or another table",
                name=mirror.name,
                key_as_json=newest.key_as_json,
            )
    if found.mirror_id is not None and (newest is None or found.mirror_id != newest.mirror_id):
        raise WrongMirrorError(
            "another mirror writes this table, perhaps of a job that was deleted and made anew: give this one"
            " another table, or drop that one",
            name=mirror.name,
            target=place,
        )
    if newest is None and found.mirror_id is None and not found.is_empty:
        raise WrongMirrorError(
            "the table has rows that no mirror has written: give the mirror a table of its own",
            name=mirror.name,
            target=place,
        )


def same(one: MirrorStep, other: MirrorStep) -> bool:
    """True if both are the same step, made by different processes."""
    return _bare(one) == _bare(other)


def _bare(step: MirrorStep) -> MirrorStep:
    return msgspec.structs.replace(step, at_s=0.0, done=False, refused=False, hold_s=0.0)


def _follows(step: MirrorStep, found: MirrorMark) -> bool:
    """True if the step can be taken where the table stands."""
    if step.kind == "whole":
        return found.is_empty or (found.number is not None and found.number < step.number)
    return found.number == step.number - 1
