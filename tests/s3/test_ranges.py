"""Ranges of key groups over a bucket: one connection for all attempts of a process."""

from collections import Counter
from collections.abc import Mapping

from statebackend import Key, Observer, Settings
from statebackend._ranges.range_owners import open_range_owners
from tests.knobs import replaced
from tests.ranges.parts import Model, open_run


class Requests(Observer):
    """Adds up what went to the primary."""

    def __init__(self) -> None:
        self.sent = Counter[str]()

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        self.sent.update(requests)


async def test_attempts_send_only_what_they_have_to_say(settings: Settings) -> None:
    """What is small comes back with the result; a process that is new here reads what it lacks."""
    model, requests = Model(), Requests()
    settings = replaced(settings, upload__timeout_s=0.0)  # on a slow machine, too, an upload is one request
    async with open_run(settings, 2) as run:
        async with open_range_owners(observer=requests) as owners:
            for number in range(4):
                changes: list[tuple[Key, int]] = [(key, number) for key in range(10)]
                await run.batch(owners, changes)
                model.apply(changes)
            assert requests.sent == {}
        large: list[tuple[Key, int]] = [(key, 1) for key in range(30_000)]
        async with open_range_owners(observer=requests) as owners:
            await run.batch(owners, large)
            model.apply(large)
            assert requests.sent["put"] == 2
            assert {each.found for each in await run.batch(owners, large[:10])} == {"process"}
            model.apply(large[:10])
    await model.check(settings)
