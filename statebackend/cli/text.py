"""Prints records for people, as lines and tables. `--json` prints the same records for programs."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from statebackend.cli.progress_bar import size
from statebackend.ids import RestoreSource, SourceMark
from statebackend.reports import (
    CloneReport,
    Damage,
    EraseReport,
    ErasureProof,
    Inspection,
    JobReport,
    LogRow,
    MirrorReport,
    MirrorRow,
    RangeRow,
    Repair,
    RewriteReport,
    SavepointInfo,
    SizeRow,
    SweepReport,
    TransformReport,
    VerifyReport,
    size_totals,
)

BAR_LENGTH: Final = 24


def visible(line: str) -> str:
    """The line with everything that does not print escaped: what a job says must not steer the terminal."""
    return line if line.isprintable() else "".join(map(_visible, line))


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def json_text(value: object) -> str:
    """The value in JSON, with everything in its texts escaped that does not print."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else "".join(each if each.isprintable() else escaped(each) for each in text)


def escaped(text: str) -> str:
    """Each character as JSON escapes it: by its one or two units of UTF-16."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def inspection_lines(found: Inspection) -> Iterator[str]:
    """The log, the states, and what lies where."""
    yield f"job {found.job}: newest checkpoint {_or_dash(found.newest_checkpoint_id)}, epoch {_or_dash(found.epoch)}"
    yield ""
    heads = ("seq", "", "kind", "epoch", "checkpoint", "parent", "batch", "at", "bytes", "objects", "their bytes", "")
    yield from _table([heads, *(_log_cells(row) for row in found.log)])
    yield ""
    yield from _table([("state", "kind", "schema"), *((each.name, each.kind, each.schema) for each in found.states)])
    yield ""
    yield from _table([*size_cells(found.sizes)])
    yield ""
    places = ((place, str(count), str(size)) for place, (count, size) in found.places.items())
    yield from _table([("place", "objects", "bytes"), *places])


def _log_cells(row: LogRow) -> tuple[str, ...]:
    return (
        str(row.sequence),
        "*" if row.on_branch else "",
        row.kind,
        _or_dash(row.epoch),
        _or_dash(row.checkpoint_id),
        _or_dash(row.parent),
        _or_dash(None if row.source is None else row.source.batch_id),
        utc(row.at_s),
        str(row.size_bytes),
        str(row.objects),
        str(row.object_bytes),
        row.problem or ", ".join((*(f"savepoint {name}" for name in row.savepoints), *_restored(row))),
    )


def _restored(row: LogRow) -> Iterator[str]:
    if row.restored is not None:
        yield restored_line(row.restored)


def report_lines(found: JobReport) -> Iterator[str]:
    """The newest checkpoint, then its ranges and states, then everything that lies there."""
    source = found.newest.newest_mark
    batch = "" if source is None else f", batch {source.batch_id} of query {source.query_id}"
    yield f"job {found.job}: checkpoint {found.newest.checkpoint_id} at {utc(found.newest.committed_at_s)}{batch}"
    yield f"epoch {found.newest.epoch}, {found.max_parallelism} key groups, written by release {found.release or '-'}"
    yield ""
    heads = ("key groups", "bases", "their bytes", "change sets", "their bytes", "operator state", "")
    largest = max(row.base_bytes + row.changelog_bytes for row in found.ranges)
    yield from _table([heads, *(_range_cells(row, largest) for row in found.ranges)])
    if found.changelog_ratio is not None:
        yield f"the changelog is {found.changelog_ratio:.2f} times as large as the bases"
    yield ""
    yield from _table([("state", "kind", "schema"), *((each.name, each.kind, each.schema) for each in found.states)])
    yield ""
    yield from _table([*size_cells(found.sizes)])
    yield ""
    for title, totals in (("place", found.places), ("verdict", found.verdicts)):
        cells = ((name, str(count), size(size_bytes)) for name, (count, size_bytes) in totals.items())
        yield from _table([(title, "objects", "bytes"), *cells])
        yield ""
    if found.outputs:
        yield f"output of {found.outputs} batches was not known to be published when the checkpoint was committed"
    if found.savepoints:
        yield from savepoint_lines(found.savepoints)
        yield ""
    if found.mirrors:
        yield from _table([_MIRROR_HEADS, *map(_mirror_cells, found.mirrors)])
        yield ""
    if found.pace is None:
        yield "the log spans less than a minute: too little to estimate the cost of a month"
    else:
        pace = found.pace
        yield f"{pace.puts} PUTs in {pace.seconds:.0f} s: at least {pace.usd_month:.2f} USD in 30 days, storage aside"


_MIRROR_HEADS: Final = ("mirror", "state", "form", "checkpoint", "behind", "target")


def _mirror_cells(row: MirrorRow) -> tuple[str, ...]:
    behind = f"{row.commits_behind} commits, {row.seconds_behind:.0f} s"
    return (row.name, row.state, row.form, str(row.checkpoint_id), behind, row.target)


def mirror_lines(done: MirrorReport) -> Iterator[str]:
    """The work of a mirror, for people."""
    if not done.steps:
        yield f"mirror {done.name}: nothing to do, its table has the newest commit"
        return
    for reason in done.anew:
        yield f"mirror {done.name}: began with the whole state: {reason}"
    yield f"mirror {done.name}: checkpoint {done.checkpoint_id}, {done.rows} rows of {done.commits} commits"
    if done.anew and done.view is not None:
        yield "the newest row of each key:"
        yield from done.view.splitlines()


def size_cells(rows: Iterable[SizeRow]) -> Iterator[tuple[str, ...]]:
    """The head and the rows of a table of sizes by state, over all ranges."""
    yield ("keys", "bytes", "ranges", "largest range", "of state")
    for each in size_totals(rows):
        about = "about " if each.is_estimate else ""
        keys, size_bytes = f"{about}{each.keys}", f"{about}{size(each.size_bytes)}"
        yield (keys, size_bytes, str(each.ranges), f"{each.skew:.2f} times the mean", " and ".join(each.states))


def restored_line(source: RestoreSource) -> str:
    """Where an opening read the state from."""
    return (
        f"{source.files_local} files ({size(source.bytes_local)}) were restored from local copies, "
        f"{source.files_primary} ({size(source.bytes_primary)}) from the primary, in {source.seconds:.2f} s"
    )


def range_numbers(row: RangeRow) -> tuple[str, ...]:
    """The range, its bases and their bytes, its change sets and theirs, its operator state."""
    return (
        row.key_groups,
        str(row.bases),
        size(row.base_bytes),
        str(row.change_sets),
        size(row.changelog_bytes),
        size(row.operator_bytes),
    )


def _range_cells(row: RangeRow, largest: int) -> tuple[str, ...]:
    """The last cell is a bar, as long as the range is large: "#" for its bases, "." for its changelog."""
    bases, both = (
        round(BAR_LENGTH * count / max(1, largest)) for count in (row.base_bytes, row.base_bytes + row.changelog_bytes)
    )
    return (*range_numbers(row), "#" * bases + "." * (both - bases))


def rewrite_lines(done: RewriteReport) -> Iterator[str]:
    """The result of a rewrite or a dry run, for people."""
    was = f"job {done.job}: checkpoint {done.read_id} has {done.max_parallelism_before} key groups"
    if not done.is_needed:
        yield f"{was} already: nothing to do"
        return
    yield f"{was}, {sum(done.keys.values())} keys in {len(done.keys)} states; {size(done.bytes_read)} were read"
    if done.dry_run:
        yield f"dry run: it can be rewritten with {done.max_parallelism}; nothing was written"
        return
    yield (
        f"checkpoint {done.checkpoint_id} has {done.max_parallelism}: {size(done.bytes_written)} in {done.segments} "
        f"segments, {done.requests} requests ({done.usd:.6f} USD), {done.seconds:.1f} s"
    )
    yield f"from now on, open the job with max_parallelism={done.max_parallelism}"


def clone_lines(done: CloneReport) -> Iterator[str]:
    """The result of a clone, for people."""
    states = f"{len(done.states)} states" + ("" if done.share == 1.0 else f", {done.share:.3%} of the keys")
    yield (
        f"job {done.job}: checkpoint {done.checkpoint_id} of job {done.source_job}, {states}, "
        f"{done.max_parallelism} key groups"
    )
    yield (
        f"{done.objects} objects, {size(done.size_bytes)}, {done.copied} copied by the store, {done.found} found from "
        f"an interrupted call; {done.requests} requests, {done.seconds:.1f} s"
    )
    if done.outputs:
        yield f"output of {done.outputs} batches is still to be published: the clone publishes it too"
    if done.source is not None:
        yield f"a stream of it goes on with {_following(done.source)}"


def transform_lines(done: TransformReport) -> Iterator[str]:
    """The result of a transformation or a dry run, for people."""
    yield (
        f"job {done.job}: checkpoint {done.read_id} has {done.keys_read} keys in {done.state}: "
        f"{done.unchanged} stay as they are, {done.dropped} are dropped"
    )
    for name, count in done.keys.items():
        yield f"{name}: {count} keys are written"
    if done.collision is not None:
        state, key = done.collision
        yield f"{done.collisions} keys are there already, such as {key!r} in {state}: this would be refused"
    if done.checkpoint_id is None:
        yield "dry run: nothing was written"
    else:
        yield (
            f"checkpoint {done.checkpoint_id} has them: {size(done.bytes_written)}, {done.requests} requests, "
            f"{done.seconds:.1f} s"
        )


def erase_lines(done: EraseReport) -> Iterator[str]:
    """The result of an erasure or a dry run, for people. The keys are not in it."""
    groups = ", ".join(map(str, done.key_groups))
    yield (
        f"job {done.job}: checkpoint {done.read_id} has {done.changes} changes of {done.keys} keys "
        f"(key groups {groups}) in {len(done.rewritten)} objects; {size(done.bytes_read)} were read"
    )
    for name in done.savepoints_dropped:
        yield f"savepoint {name} was dropped"
    if done.checkpoint_id is not None:
        yield f"checkpoint {done.checkpoint_id} is without them: {size(done.bytes_written)}, {done.requests} requests"
    else:
        yield "dry run: nothing was written" if done.dry_run else "they were erased before: nothing to do"
    for holder in done.holders:
        yield f"until a sweep after {utc(holder.sweepable_from_s)}: {holder.key} ({holder.reason})"
    if done.outputs_pending:
        yield f"output of {done.outputs_pending} batches is still to be published: it may name the keys"


def proof_lines(proof: ErasureProof) -> Iterator[str]:
    """The result of `erase --verify`, for people."""
    for holder in proof.holders:
        yield f"{holder.key}  ({holder.reason})"
    objects = f"{proof.objects} objects, {size(proof.size_bytes)}, were read"
    yield f"{objects}: none has the keys" if proof.is_proved else f"{objects}: {len(proof.holders)} may have the keys"


def savepoint_lines(found: Sequence[SavepointInfo]) -> Iterator[str]:
    """A table of savepoints, each with the batch of Spark that a stream goes on with from there."""
    rows = (
        (
            each.name,
            str(each.checkpoint_id),
            str(each.sequence),
            utc(each.committed_at_s),
            _following(each.source),
        )
        for each in found
    )
    yield from _table([("savepoint", "checkpoint", "sequence", "committed at", "goes on with"), *rows])


def _following(source: SourceMark | None) -> str:
    return "" if source is None else f"batch {source.batch_id + 1} of query {source.query_id}"


def verify_lines(report: VerifyReport) -> Iterator[str]:
    """The undamaged objects by copy, then each damage."""
    yield f"checkpoints {', '.join(map(str, report.checkpoints)) or 'none'}"
    for copy, count in report.objects.items():
        yield f"{copy:<8}{count:>10} objects{report.size_bytes[copy]:>16} bytes are undamaged"
    if report.local_missing:
        yield f"local   {report.local_missing:>10} copies are missing: a restore reads the primary instead"
    if report.local_of_others:
        yield f"local   {report.local_of_others:>10} copies are of another run: a restore reads the primary instead"
    for damage in report.damages:
        yield f"damaged: {_damage_line(damage)}"


def _damage_line(damage: Damage) -> str:
    offset = "" if damage.offset is None else f" at offset {damage.offset}"
    needed = f", needed by checkpoints {', '.join(map(str, damage.checkpoints))}" if damage.checkpoints else ""
    copy = f"; an intact copy lies in {damage.local_copy}: see repair" if damage.local_copy else ""
    return f"{damage.copy} {damage.key}{offset}: {damage.reason}{needed}{copy}"


def repair_lines(found: Sequence[Repair]) -> Iterator[str]:
    """Each object that has an intact local copy, and how the log names that copy."""
    for each in found:
        done = "put back" if each.put_back else "can be put back with --write"
        proof = each.proof or "NOT PROVED to be this commit: it may be of one that was never made"
        yield f"{each.key}: checkpoint {each.checkpoint_id} of {utc(each.committed_at_s)}, from {each.path}: {done}"
        yield f"    {proof}"
    if not found:
        yield "no intact local copy of anything that the primary has damaged or lost"


def all_lines(report: SweepReport) -> Iterator[str]:
    """Every object with its verdict, then the lines that a sweep prints in any case."""
    for each in (*report.objects, *report.local):
        yield f"{each.verdict.value:<12}{each.size_bytes:>16}  {each.key}  ({each.reason})"
    yield from report.lines()


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def utc(at_s: float | None) -> str:
    """A time in UTC, a dash for none."""
    if at_s is None:
        return "-"
    return dt.datetime.fromtimestamp(at_s, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
