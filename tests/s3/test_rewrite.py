"""A job in a bucket gets other key groups: the same as anywhere, and few requests."""

from msgspec.structs import replace

from statebackend import Settings, open_backend, rewrite
from tests.knobs import replaced


async def test_a_job_in_a_bucket_is_rewritten(settings: Settings) -> None:
    """With one GET for each file, one PUT for each base, and no more than a dozen requests besides."""
    large = replaced(settings, inline_bytes_max=0, compression="none", upload__timeout_s=0.0)  # one attempt each
    async with open_backend(large) as backend:
        numbers = backend.value_state("numbers", str)
        for checkpoint in range(3):
            numbers.update({f"{checkpoint} {number}": "x" * 1000 for number in range(3000)})
            await backend.checkpoint(checkpoint)
    after = replace(large, max_parallelism=1000, in_flight_bytes_max=4 << 20, persist_size_threshold_bytes=1 << 20)
    report = await rewrite(after)
    assert report.segments > 5
    assert report.requests <= 3 + report.segments + 12
    async with open_backend(after, read_only=True) as backend:
        assert len(backend.value_state("numbers", str)) == 9000
    assert not (await rewrite(after)).is_needed
