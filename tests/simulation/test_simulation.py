"""Lives of one job in bad weather keep every promise, and a backend that breaks one is found out."""

import functools
import itertools
import re
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

import statebackend as sb
from statebackend._backend.sweeping import AT_ONCE_EVERY
from statebackend.objectstore.scoped import ScopedStore
from tests.simulation.judged import Sabotage
from tests.simulation.scenario import SMALL_FROM, draw_scenario, draw_small
from tests.simulation.world import BrokenError, simulate

pytestmark = pytest.mark.usefixtures("quiet")
SEEDS_IN_A_TEST = 15

simulated = functools.cache(simulate)
"""Several tests look at the same seeds: each is run once for all of them."""


@pytest.mark.parametrize(
    "first", [*range(0, 75, SEEDS_IN_A_TEST), *range(SMALL_FROM, SMALL_FROM + 90, SEEDS_IN_A_TEST)]
)
def test_every_seed_keeps_every_promise(first: int) -> None:
    """Crashes, zombies, lost answers, cancellations: each seed ends with the state of some committed batch, whole."""
    commits = sum(simulated(seed).commits for seed in range(first, first + SEEDS_IN_A_TEST))
    assert commits > SEEDS_IN_A_TEST


def test_owners_on_one_disk_count_its_bytes_each_for_itself() -> None:
    """As `docs/decisions/processes-share-a-host.md` has it; the judge once took the bound of one for that of all."""
    assert simulate(7012).commits


def test_a_commit_that_has_just_reached_its_bound_was_not_in_time() -> None:
    """By the clock of the loop, to the last bit: it was cancelled, its answer was lost, and nothing is to be judged."""
    assert simulate(101084).commits


def test_small_jobs_are_drawn_for_most_of_the_seeds_from_there_on() -> None:
    """Others stay as they are: what they draw goes on behind theirs."""
    chances = [Random(seed) for seed in range(200)]
    drawn = draw_scenario(Random(1))
    small = [draw_small(chance, SMALL_FROM, drawn) for chance in chances]
    assert 0.8 < sum(each is not drawn for each in small) / len(small) < 0.95
    assert all(len(each.lives) <= 3 for each in small if each is not drawn)
    assert draw_small(Random(1), SMALL_FROM - 1, drawn) is drawn


@pytest.mark.parametrize("seed", range(0, 75, 5))
def test_a_seed_decides_its_run(seed: int) -> None:
    """The same seed gives the same trace, but for the order of what belongs to one instant."""
    assert sorted(simulated(seed).trace) == sorted(simulate(seed).trace)


@pytest.mark.parametrize("seed", [15, 35, 60])
def test_a_job_is_opened_again_for_each_batch(seed: int) -> None:
    """More often than a sweep at once is due. Such lives are drawn for every eighth seed."""
    lives = {found[0] for line in simulated(seed).trace if (found := re.search(r"life\d+ ended", line))}
    assert len(lives) > AT_ONCE_EVERY


DRAWN = {
    "a base of lives of one batch": (r"bases of \d+ key groups are written", 15),
    "a sweep at an opening": (r"life\d+ primary put simulated/swept/\d+: done", 35),
    "a damaged commit that its copy replaces": (r"is damaged, .* proved: True", 12),
    "a commit that is gone and that its copy replaces": (r"is gone, .* proved: True", 3015),
    "a damaged commit whose copy is not proved": (r"is damaged, .* proved: False", 1486),
    "a life that has followed commits before it takes the job over": (r"has followed [1-9]", 7),
    "a follower that reads a commit anew": (r"jumps to commit", 19),
}
"""The line of a trace that shows it, and the seed that is tried first."""


@pytest.mark.parametrize(("pattern", "seed"), DRAWN.values(), ids=DRAWN)
def test_the_rarer_draws_are_reached(pattern: str, seed: int) -> None:
    """Or they would prove nothing. A request more or less moves them, and then another seed has it."""
    seeds = itertools.chain([seed], range(500))
    assert any(re.search(pattern, line) for seed in seeds for line in simulated(seed).trace)


class _Overwriting(ScopedStore):
    """Creates what is there already: two writers both win."""

    async def put_if_absent(self, key: str, body: sb.abc.Body) -> None:
        await self.put(key, body)


class _Forgetful(ScopedStore):
    """Acknowledges segments and stores every other one."""

    count = 0

    async def put(self, key: str, body: sb.abc.Body) -> None:
        self.count += 1
        if "segments/" not in key or self.count % 2:
            await super().put(key, body)


class _Garbling(ScopedStore):
    """Changes a byte of some segments on their way."""

    async def put(self, key: str, body: sb.abc.Body) -> None:
        content = bytearray(b"".join(body))
        if "segments/" in key and len(content) % 3 == 0:
            content[len(content) // 2] ^= 1
        await super().put(key, [bytes(content)])


class _Tidy(ScopedStore):
    """Deletes the segment that was uploaded before a commit: cleans up what it does not own."""

    newest = ""

    async def put(self, key: str, body: sb.abc.Body) -> None:
        await super().put(key, body)
        self.newest = key if "segments/" in key else self.newest

    async def put_if_absent(self, key: str, body: sb.abc.Body) -> None:
        await super().put_if_absent(key, body)
        if self.newest:
            await self.delete(self.newest)


class _Hoarding(ScopedStore):
    """Deletes nothing, and says that it did."""

    async def delete(self, key: str) -> None:
        pass


class _Hasty(ScopedStore):
    """Says of every sweep that it goes further than the log."""

    async def put(self, key: str, body: sb.abc.Body) -> None:
        head, found, floor = key.partition("swept/")
        await super().put(f"{head}{found}{int(floor) + 100:012d}" if found else key, body)


class _Nameless(ScopedStore):
    """Shows a sweep no savepoints."""

    async def list(self, prefix: str) -> AsyncIterator[sb.abc.ObjectInfo]:
        async for info in super().list(prefix):
            if "savepoints/" not in info.key:
                yield info


class _Unmending(ScopedStore):
    """Lets nobody put a damaged entry of the log back, and says that it did."""

    async def put(self, key: str, body: sb.abc.Body) -> None:
        if "commits/" not in key:
            await super().put(key, body)


class _Bungling(ScopedStore):
    """Puts another entry in the place of a damaged one."""

    async def put(self, key: str, body: sb.abc.Body) -> None:
        await super().put(key, [*body, b"more"] if "commits/" in key else body)


WRONG: Sequence[tuple[type[ScopedStore], int]] = [
    *((wrong, 0) for wrong in (_Overwriting, _Forgetful, _Garbling, _Tidy, _Hoarding, _Hasty, _Nameless)),
    *((wrong, 12) for wrong in (_Unmending, _Bungling)),
]
"""And a seed from which on it is soon found out."""


@pytest.mark.parametrize(("wrong", "first"), WRONG)
def test_a_wrong_store_is_found_out(wrong: type[ScopedStore], first: int) -> None:
    """Within a few dozen seeds, whatever it does wrong, and the error says how to see it again."""

    class Wrong(Sabotage):
        def store(self, store: sb.ObjectStore) -> sb.ObjectStore:
            return wrong(store, "")

    def simulate_many() -> None:
        for seed in range(first, first + 60):
            simulate(seed, sabotage=Wrong())

    with pytest.raises(BrokenError) as caught:
        simulate_many()
    assert f"STATEBACKEND_SEED={caught.value.seed}" in str(caught.value)
