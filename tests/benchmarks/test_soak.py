"""The soak runs, and tells what has grown from what comes in waves."""

import dataclasses
from pathlib import Path

from benchmarks.soak import SAMPLES, Sample, drawn, grown, soak


async def test_it_runs_and_finds_every_batch_again(tmp_path: Path) -> None:
    """In two seconds: too short to be flat, long enough to be swept."""
    samples = await soak(tmp_path, minutes=2 / 60)
    assert len(samples) == SAMPLES
    assert len(drawn(samples)) == len(dataclasses.fields(Sample))


def test_what_grows_is_named_and_waves_are_not() -> None:
    """One figure goes up and down, another climbs, a third has reached its level early."""
    still = Sample(0, 500, 10**6, 50, 10**5, 2000, 10**8, 20, 20, 10.0)
    samples = [
        dataclasses.replace(
            still, primary_files=500 + 300 * (number % 5), local_files=50 + 20 * number, threads=min(number, 9) + 10
        )
        for number in range(SAMPLES)
    ]
    assert set(grown(samples)) == {"local_files"}
