"""The show: stream, kill, damage, start again, three times over; then verify."""

from collections.abc import Iterator

from rich.console import Console

from benchmarks.demo.acts import Act, plan
from benchmarks.demo.child import Child
from benchmarks.demo.events import Committed, Finished, Restored, Verified
from benchmarks.demo.places import Places
from benchmarks.demo.progress import Progress
from benchmarks.demo.report import recovery_in_words
from benchmarks.demo.story import DemoError, Recovery, Story

LOG_LINES_SHOWN = 25


def play(places: Places, days: int, console: Console) -> Story:
    """Run the stream to its end through all acts. Raises `DemoError` if the process ends by itself."""
    story = Story(days)
    with Progress(console, days) as progress:
        for act in (*plan(days), None):
            killed_at = _run_until(act, places, story, progress)
            story.judge_recovery(places)
            if act is None:
                break
            spark_had_committed = (places.spark_checkpoint / "commits" / str(killed_at)).exists()
            recovery = Recovery(act, killed_at, act.damage(places), spark_had_committed)
            story.recoveries.append(recovery)
            progress.say(
                f"[bold red]SIGKILL[/] in batch {killed_at + 1}, {act.moment_in_words}; {recovery.damage.words}"
            )
    missing = [batch for batch in range(days) if batch not in story.batches]
    killed_in = {recovery.killed_at for recovery in story.recoveries}
    if not killed_in.issuperset(missing):
        story.failures.append(f"no commit was seen of the batches {missing}")
    return story


def _run_until(act: Act | None, places: Places, story: Story, progress: Progress) -> int:
    """Run one process, to its end or until `act` kills it. Returns the batch it was killed in, else -1."""
    killed_at, finished = -1, False
    with Child("benchmarks.demo.job", places) as child:
        for event in child.events():
            story.note(event)
            if act is not None and killed_at < 0 and act.is_due(event):
                child.kill()  # and continue listening: what it wrote before is still to be read
                killed_at = _batch(event)
            match event:
                case Committed():
                    progress.committed(event)
                case Restored() if story.recoveries:
                    progress.say(recovery_in_words(story.recoveries[-1]))
                case Finished():
                    finished = True
                case _:
                    pass
        status = child.wait()
    if killed_at < 0 and not (finished and status == 0):
        raise DemoError(f"the streaming process ended with status {status}:\n{_log_tail(places)}")
    return killed_at


def verify(places: Places) -> Verified:
    """Compare every aircraft, in a process of its own."""
    with Child("benchmarks.demo.verify", places) as child:
        verdicts: Iterator[Verified] = (event for event in child.events() if isinstance(event, Verified))
        verdict = next(verdicts, None)
        status = child.wait()
    if verdict is None:
        raise DemoError(f"the verification ended with status {status}:\n{_log_tail(places)}")
    return verdict


def _batch(event: object) -> int:
    batch = getattr(event, "batch", -1)
    assert isinstance(batch, int)
    return batch


def _log_tail(places: Places) -> str:
    lines = places.log.read_text(errors="replace").splitlines()
    return "\n".join([*lines[-LOG_LINES_SHOWN:], f"(all of it is in {places.log})"])
