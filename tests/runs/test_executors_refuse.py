"""State over runs stays with one process: tasks on executors come and go."""

import pytest

from statebackend._ranges.range_owners import open_range_owners
from statebackend.errors import SettingsError
from statebackend.objectstore import MemoryStore
from statebackend.spark.execution import check_place
from tests.knobs import replaced
from tests.ranges.parts import open_run
from tests.ranges.test_ranges import SETTINGS


async def test_an_attempt_at_a_range_refuses_runs() -> None:
    """With an error that says what to do."""
    store, settings = MemoryStore(), replaced(SETTINGS, table="runs")
    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        (task,) = run.tasks()
        with pytest.raises(SettingsError, match="stays with one process"):
            async with owners.attempt(task):
                pass


def test_a_sink_on_executors_refuses_runs_when_it_is_made() -> None:
    """Before a stream begins."""
    pytest.importorskip("pyspark")
    from statebackend._processing.runner import ProcessorRunner  # noqa: PLC0415

    work = ProcessorRunner.__new__(ProcessorRunner)
    check_place(work, "executors", 2, standby=False, table="heap")
    with pytest.raises(SettingsError, match="stays with one process"):
        check_place(work, "executors", 2, standby=False, table="runs")
