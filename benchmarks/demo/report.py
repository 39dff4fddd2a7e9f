"""The tables and the verdict at the end."""

import statistics

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.demo.events import Verified
from benchmarks.demo.progress import size
from benchmarks.demo.story import Recovery, Story


def recovery_in_words(recovery: Recovery) -> str:
    """One line about a restore, for when the state is back."""
    report = recovery.report
    assert report is not None
    repaired = sum(fallback.repaired for fallback in report.fallbacks)
    return (
        f"[bold green]recovered[/] {report.files_local} files from the local copy, {report.files_primary} from the "
        f"primary, in {report.seconds * 1000:.0f} ms" + (f"; {repaired} repaired" if repaired else "")
    )


def show(story: Story, verdict: Verified, console: Console) -> None:
    """Print the tables and the verdict."""
    console.print(_recoveries(story), _aircraft(verdict), _numbers(story, verdict), highlight=False)
    _verdict(story, verdict, console)


def _recoveries(story: Story) -> Table:
    table = Table(title="Recoveries: files from each copy", title_justify="left")
    for heading in ("what happened", "batch", "then Spark"):
        table.add_column(heading)
    for heading in ("local", "primary", "repaired", "bytes", "time"):
        table.add_column(heading, justify="right")
    for recovery in story.recoveries:
        table.add_row(recovery.act.title, str(recovery.killed_at + 1), _what_spark_did(recovery), *_restore(recovery))
    return table


def _what_spark_did(recovery: Recovery) -> str:
    """Spark's next step with the batch of the kill: it delivers it again unless it had recorded its end."""
    if recovery.first_batch == recovery.killed_at:
        return "sent it again: applied"
    if not recovery.spark_had_committed:
        return "sent it again: skipped"
    return "continued"


def _restore(recovery: Recovery) -> tuple[str, ...]:
    report = recovery.report
    if report is None:
        return ("?",) * 5
    return (
        str(report.files_local),
        str(report.files_primary),
        str(sum(fallback.repaired for fallback in report.fallbacks)),
        size(report.bytes_local + report.bytes_primary),
        f"{report.seconds * 1000:.0f} ms",
    )


def _aircraft(verdict: Verified) -> Table:
    table = Table(title="Busiest aircraft, from the state", title_justify="left", show_footer=True)
    table.add_column("tail number", footer=f"{verdict.aircraft:,} aircraft")
    table.add_column("last airport")
    table.add_column("last arrival")
    table.add_column("flights", justify="right", footer=f"{verdict.flights:,}")
    table.add_column("minutes late", justify="right", footer=f"{verdict.delay_minutes:,}")
    table.add_column("jumps", justify="right", footer=f"{verdict.jumps:,}")
    for known in verdict.busiest:
        table.add_row(
            known.tail_number,
            known.last_airport,
            known.last_arrival,
            f"{known.flights:,}",
            f"{known.delay_minutes:,}",
            f"{known.jumps:,}",
        )
    return table


def _numbers(story: Story, verdict: Verified) -> Table:
    batches = list(story.batches.values())
    milliseconds = sorted(event.info.seconds * 1000 for event in batches)
    p50, p99 = statistics.median(milliseconds), milliseconds[len(milliseconds) * 99 // 100]
    requests = sum(event.info.requests for event in batches) / len(batches)
    to_primary = sum(event.info.primary_bytes for event in batches)
    to_local = sum(event.info.local_bytes for event in batches)
    table = Table.grid(padding=(0, 2))
    table.add_row("batches", f"{len(batches)}, with {sum(event.rows for event in batches):,} rows")
    table.add_row("checkpoint", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {requests:.1f} requests to the primary")
    table.add_row("written", f"{size(to_primary)} to the primary, {size(to_local)} to the local copy")
    table.add_row(
        "verified", f"batch query {verdict.query_seconds:.1f} s, opening the state {verdict.open_seconds:.2f} s"
    )
    return table


def _verdict(story: Story, verdict: Verified, console: Console) -> None:
    for sentence in (*story.failures, *verdict.differences):
        console.print("[bold red]WRONG[/]", escape(sentence), highlight=False)
    if verdict.different:
        words = f"[bold red]DIFFERENT[/] {verdict.different:,} of {verdict.aircraft:,} aircraft"
    else:
        words = f"[bold green]EQUAL[/] all {verdict.aircraft:,} aircraft are as the batch query says"
    console.print(words, highlight=False)
    if story.failures:
        console.print(f"[bold red]FAILED[/] {len(story.failures)} things were not as they should be")
