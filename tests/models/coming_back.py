"""One job on one table, codec and store: what it writes comes back, life after life."""

from random import Random

from statebackend.settings import Compression, TableKind
from tests.models.contents import Contents
from tests.models.crew import Crew, Plan, settings_in
from tests.models.invariants import assert_restored_is_committed
from tests.models.kinds import draw_operation
from tests.models.places import Places

LIVES: tuple[tuple[set[int], int | None], ...] = (
    (set(), 0),  # alone
    ({3, 9}, 0),  # three, of whom the first is where the one before was
    ({1, 4, 8, 12}, None),  # five, without local copies
    (set(), 2),  # alone, where others have some
)
"""The cuts between the owners, and the first one's host."""

OPERATIONS = 60


async def assert_comes_back(places: Places, table: TableKind, codec: Compression) -> None:
    """What several owners wrote comes back to one, and the other way round; bases are written by the way."""
    contents, chance, now = Contents(), Random(1), 0.0
    settings = {"table": table, "table_memory_bytes": 4 << 20, "compression": codec, "inline_bytes_max": 0}
    settings |= {"materialize_handles_max": 1}
    for life, (cuts, host) in enumerate(LIVES):
        plan = Plan(cuts=frozenset(cuts), first_host=host, settings=tuple(settings.items()))
        crew = Crew(places, settings_in(places), plan, places.primary(), lambda: now)
        await crew.open()
        assert_restored_is_committed(crew.visible(), contents.visible(now))
        for checkpoint_id in (2 * life, 2 * life + 1):
            for name, pairs in (draw_operation(chance) for _ in range(OPERATIONS)):
                if name != "merge":  # of keys of two owners there is none
                    crew.apply(name, pairs)
                    getattr(contents, name)(pairs, now)
            crew.ring(contents)
            await crew.checkpoint(checkpoint_id)
        await crew.leave()
