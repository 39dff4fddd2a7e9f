"""Local copies and the checkpoints that use them: each row of the original's test, and a naive model for the rest."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._local.registry import LocalRegistry
from statebackend.ids import CheckpointId


def one(checkpoint: int) -> CheckpointId:
    return CheckpointId(checkpoint)


@pytest.fixture
def registry() -> LocalRegistry:
    return LocalRegistry()


@pytest.fixture
def two_checkpoints(registry: LocalRegistry) -> LocalRegistry:
    """Checkpoint 1 uses h1 and h2, checkpoint 2 uses h2 and h3."""
    registry.register(["h1", "h2"], one(1))
    registry.register(["h2", "h3"], one(2))
    return registry


def test_confirming_a_checkpoint_gives_up_what_only_older_ones_used(two_checkpoints: LocalRegistry) -> None:
    """LocalChangelogRegistryTest.testRegistryNormal (discard up to 2): h1 is deleted, h2 is kept."""
    assert two_checkpoints.confirm(one(2)) == ["h1"]
    assert len(two_checkpoints) == 2


def test_a_later_checkpoint_gives_up_the_rest(two_checkpoints: LocalRegistry) -> None:
    """LocalChangelogRegistryTest.testRegistryNormal (discard up to 3): then h2 and h3 are deleted."""
    two_checkpoints.confirm(one(2))
    assert two_checkpoints.confirm(one(3)) == ["h2", "h3"]
    assert len(two_checkpoints) == 0


def test_a_copy_is_given_up_once(two_checkpoints: LocalRegistry) -> None:
    """The caller, which deletes it, need not remember that."""
    assert two_checkpoints.confirm(one(3)) == ["h1", "h2", "h3"]
    assert two_checkpoints.confirm(one(3)) == two_checkpoints.confirm(one(4)) == []


def test_registration_precedes_the_commit(registry: LocalRegistry) -> None:
    """FLINK-30863: 2 is under way when 1 is confirmed again, or late; what 2 uses is not touched."""
    registry.register(["shared", "of one"], one(1))
    registry.register(["shared", "of two"], one(2))
    assert registry.confirm(one(1)) == []
    assert registry.confirm(one(2)) == ["of one"]


def test_restored_copies_live_as_long_as_checkpoints_use_them(registry: LocalRegistry) -> None:
    """Hazard 8: registered at restore, they stay at each confirm that uses them, and go at the first that does not."""
    registry.register(["restored 1", "restored 2"], one(7))
    registry.register(["restored 1", "restored 2", "new"], one(8))
    assert registry.confirm(one(8)) == []
    registry.register(["restored 2", "new"], one(9))
    assert registry.confirm(one(9)) == ["restored 1"]


def test_an_abort_costs_the_last_good_checkpoint_nothing(two_checkpoints: LocalRegistry) -> None:
    """FsStateChangelogWriterTest.testLocalFileAbort (abort) deletes them all. Here a restore of 1 finds its copies."""
    two_checkpoints.confirm(one(1))
    two_checkpoints.abort(one(2))
    assert len(two_checkpoints) == 3
    assert two_checkpoints.confirm(one(1)) == ["h3"]  # and only when a commit says that it can do without


def test_the_checkpoint_after_an_abort_may_use_what_the_aborted_one_uploaded(two_checkpoints: LocalRegistry) -> None:
    """FsStateChangelogWriterTest.testLocalFileAbort (next): its copies are there."""
    two_checkpoints.abort(one(2))
    two_checkpoints.register(["h2", "h3", "h4"], one(3))
    assert two_checkpoints.confirm(one(3)) == ["h1"]


def test_an_aborted_id_protects_nothing_any_more(registry: LocalRegistry) -> None:
    """Checkpoint 100 was refused; 6, 7 and 8 follow. With the largest id alone, `old` would stay until 101."""
    registry.register(["old"], one(5))
    registry.register(["old"], one(100))
    registry.abort(one(100))
    registry.register(["old", "new"], one(6))
    assert registry.confirm(one(6)) == []
    registry.register(["new"], one(7))
    assert registry.confirm(one(7)) == ["old"]


def test_an_aborted_id_can_be_used_again(two_checkpoints: LocalRegistry) -> None:
    """A refused checkpoint is often asked for once more, under its own id."""
    two_checkpoints.abort(one(2))
    two_checkpoints.register(["h2", "h3"], one(2))
    assert two_checkpoints.confirm(one(2)) == ["h1"]


def test_without_a_checkpoint_nothing_is_given_up(registry: LocalRegistry) -> None:
    """Neither by confirming nor by aborting what nobody registered for."""
    registry.abort(one(1))
    assert registry.confirm(one(1)) == []


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["register", "confirm", "abort", "abort and go on"]),
        st.integers(1, 3),
        st.sets(st.sampled_from("abcdef")),
    ),
    max_size=30,
)


class NaiveRegistry:
    """All events, in order: nothing is ever forgotten, and every question is answered from the start."""

    def __init__(self) -> None:
        self.uses: list[tuple[str, int]] = []
        self.seen: set[str] = set()
        self.given_up: set[str] = set()

    def confirm(self, checkpoint: int) -> Sequence[str]:
        def used(key: str) -> bool:
            return any(user == key and by >= checkpoint for user, by in self.uses)

        superseded = sorted(key for key in self.seen - self.given_up if not used(key))
        self.given_up.update(superseded)
        return superseded


@settings(deadline=None)
@given(EVENTS)
def test_it_gives_up_exactly_what_a_naive_model_does(events) -> None:
    """Any order of snapshots, commits and aborts, with gaps in the ids and several checkpoints under way."""
    registry, model = LocalRegistry(), NaiveRegistry()
    newest = 0
    for event, step, keys in events:
        checkpoint = newest + step
        if event == "register":
            fresh = keys - model.given_up
            registry.register(sorted(fresh), one(checkpoint))
            model.uses += [(key, checkpoint) for key in fresh]
            model.seen |= fresh
        elif event == "confirm":
            newest = checkpoint
            assert registry.confirm(one(checkpoint)) == model.confirm(checkpoint)
        else:
            registry.abort(one(checkpoint))
            model.uses = [(key, by) for key, by in model.uses if by != checkpoint]
        assert len(registry) == len(model.seen - model.given_up)


@settings(deadline=None)
@given(EVENTS)
def test_no_copy_of_the_newest_commit_or_of_one_under_way_is_given_up(events) -> None:
    """The claim that matters, said without a model; and aborting gives up nothing at all."""
    registry = LocalRegistry()
    newest, needed, given_up = 0, {0: set[str]()}, set[str]()
    for event, step, keys in events:
        checkpoint = newest + step
        if event == "register":
            fresh = keys - given_up
            registry.register(fresh, one(checkpoint))
            needed.setdefault(checkpoint, set()).update(fresh)
        elif event == "confirm":
            newest = checkpoint
            given_up.update(registry.confirm(one(checkpoint)))
        else:
            before = len(registry)
            registry.abort(one(checkpoint))
            needed.pop(checkpoint, None)
            assert len(registry) == before
        assert not any(keys & given_up for user, keys in needed.items() if user >= newest)
