"""Which file of tests runs where and when, if several processes share them by `--dist loadfile`.

Half of the processes, one of three, begin with the files that use Spark: these mostly wait, and each process that has
such files starts a Spark of its own. The others begin with the rest, which mostly computes. Whoever runs out helps the
others.
Both begin with the files that take longest, or one of them would come last, and all others would wait for it.
"""

from collections.abc import Collection
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ON_SPARK: Final = (
    "tests/spark/",
    "tests/howto/test_async_process.py",
    "tests/howto/test_every_ten_minutes.py",
    "tests/howto/test_executors.py",
    "tests/howto/test_leave.py",
    "tests/howto/test_outbox.py",
    "tests/howto/test_processor.py",
    "tests/howto/test_read_in_spark.py",
    "tests/howto/test_runbook_on_a_stream.py",
    "tests/howto/test_ship.py",
    "tests/howto/test_watch.py",
    "tests/howto/test_readme.py",
    "tests/howto/test_savepoints.py",
    "tests/howto/test_seed.py",
    "tests/howto/test_time.py",
    "tests/howto/test_tutorial.py",
    "tests/howto/test_tutorials.py",
)
"""How the names of files begin whose tests use Spark."""

LONGEST: Final = (
    "tests/spark/test_executors.py",
    "tests/spark/test_cluster.py",
    "tests/log/test_interleavings.py",
    "tests/spark/test_redelivery.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_kill.py",
    "tests/howto/test_executors.py",
    "tests/howto/test_tutorials.py",
    "tests/howto/test_ship.py",
    "tests/simulation/test_simulation.py",
    "tests/programs/test_fresh_seeds.py",
    "tests/programs/test_more_fresh_seeds.py",
    "tests/s3/test_killed.py",
    "tests/howto/test_async_process.py",
    "tests/howto/test_processor.py",
    "tests/models/test_machine.py",
    "tests/howto/test_outbox.py",
    "tests/codec/test_damage.py",
    "tests/spark/test_columnar.py",
    "tests/spark/test_failures.py",
    "tests/spark/test_time.py",
    "tests/howto/test_read_in_spark.py",
)
"""The files that take longest, in that order: more than 15 s each when three processes share two quiet cores."""


def chosen(files: Collection[str], process: int, processes: int) -> str:
    """The file with which that process goes on."""
    waits = process % processes < processes // 2
    return min(files, key=lambda file: (file.startswith(ON_SPARK) is not waits, _place_of(file)))


def _place_of(file: str) -> int:
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


class WaitingBesideComputing(LoadFileScheduling):
    """Chooses by `chosen`."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = chosen(self.workqueue, int(node.gateway.id.removeprefix("gw")), self.numnodes)
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def scheduling(config: pytest.Config, log: Producer) -> WaitingBesideComputing | None:
    """The scheduling of a run with `--dist loadfile`; `None` for any other."""
    return WaitingBesideComputing(config, log) if config.getvalue("dist") == "loadfile" else None
