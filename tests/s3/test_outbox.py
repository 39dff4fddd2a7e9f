"""Output over a bucket: as objects, one of them in parts, or in the commit; read back to the byte, known to a sweep."""

import random

import pytest

from statebackend import Output, Settings, SourceMark, open_backend, sweep
from statebackend.reports import SweepReason
from statebackend.settings import MiB
from tests.knobs import replaced


@pytest.mark.parametrize("inline_bytes_max", [0, 20 * MiB], ids=["as objects", "in the commit"])
async def test_what_is_put_out_is_published_by_whoever_opens_the_job_next(
    settings: Settings, inline_bytes_max: int
) -> None:
    """A piece of a commit by a ranged read."""
    settings = replaced(settings, inline_bytes_max=inline_bytes_max, s3__multipart_threshold_bytes=8 * MiB)
    streams = (b"small", random.Random(1).randbytes(9 * MiB))
    async with open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(0, source=SourceMark("query", 0), output=Output(b"schema", 7, streams))
    async with open_backend(settings) as backend:
        taken = await backend.take_output()
        assert taken is not None
        output, found = taken
        assert (output.source.batch_id, output.rows, output.schema) == (0, 7, b"schema")
        assert tuple(map(bytes, found)) == streams
        assert {part.key.partition("/")[0] for part in output.parts} == {"commits" if inline_bytes_max else "outbox"}
        backend.published(output)
        await backend.checkpoint(1)
    report = await sweep(settings, dry_run=True)
    verdicts = {each.key: each.verdict for each in report.objects if each.key.startswith("outbox/")}
    assert set(verdicts.values()) == (set() if inline_bytes_max else {SweepReason.NEEDED})
    assert len(verdicts) == (0 if inline_bytes_max else 2)
