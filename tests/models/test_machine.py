"""Short forms of the machines: `nox -s models` runs long ones."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.models.machine import InMemoryMachine, Machine, OnDiskMachine

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize(
    ("machine", "examples", "steps"), [(InMemoryMachine, 30, 25), (OnDiskMachine, 6, 15)], ids=["memory", "disk"]
)
def test_the_state_is_always_the_dictionaries(machine: type[Machine], examples: int, steps: int) -> None:
    """Whatever happens to the job, on whatever its copies and tables lie."""
    if machine is OnDiskMachine:
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
