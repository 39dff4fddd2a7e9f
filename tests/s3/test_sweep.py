"""A sweep over a bucket: what no retained checkpoint needs goes, many objects in one request."""

from statebackend import Settings, open_backend, sweep
from statebackend._log.names import PROBE_KEY
from statebackend._log.sweeping.retention import SweepReason


async def test_a_sweep_of_a_bucket_knows_every_object_of_the_job(settings: Settings) -> None:
    """Also the one by which S3 was asked about put-if-absent: nothing there is foreign."""
    async with open_backend(settings) as backend:
        numbers = backend.value_state("numbers", int)
        for checkpoint in range(3):
            numbers["a"] = checkpoint
            await backend.checkpoint(checkpoint)
    report = await sweep(settings, dry_run=True)
    verdicts = {each.key: each.verdict for each in report.objects}
    assert verdicts[PROBE_KEY] is SweepReason.HINT
    assert SweepReason.FOREIGN not in verdicts.values()
