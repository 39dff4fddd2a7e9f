"""Long runs of the machines: `python -m tests.models --examples 1000`, or `nox -s models`."""

import argparse
import logging
import sys
import time

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.models.machine import InMemoryMachine, Machine, OnDiskMachine, OnTablesMachine

KINDS = {"memory": InMemoryMachine, "disk": OnDiskMachine, "rocks": OnTablesMachine}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--kind", default="memory")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    phases = [Phase.generate] + ([Phase.shrink] if args.shrink else [])
    begun = time.process_time()
    try:
        run_state_machine_as_test(
            KINDS[args.kind],
            settings=settings(
                max_examples=args.examples,
                stateful_step_count=args.steps,
                deadline=None,
                phases=phases,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        print(f"{time.process_time() - begun:.0f} s", dict(Machine.counted), file=sys.stderr)


if __name__ == "__main__":
    main()
