"""Draws a job, or an erasure, as one page of HTML: charts in inline SVG, no script, nothing that a browser fetches.

Every chart has its numbers as text beside the bars, and bars are told apart by their pattern too, so the page reads the
same in black and white. Whatever a user named is escaped.
"""

import datetime as dt
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from statebackend.cli.progress_bar import size
from statebackend.cli.text import erase_lines, proof_lines, range_numbers, size_cells, utc
from statebackend.errors import InputError, needs_extra
from statebackend.reports import EraseReport, ErasureProof, Inspection, JobReport, KeyHolder, LogRow, RangeRow, SizeRow

WIDTH: Final = 480
"""Narrow, so that the text of a chart can still be read when a phone shrinks it."""
HEIGHT: Final = 110
AXIS: Final = 76
"""The room on the left for the values of the axis."""
BAR_MAX: Final = 32
"""No bar is wider, so that a few bars do not look like a wall."""
COMMITS_MAX: Final = 200
"""The newest commits are drawn: more bars than this would be thinner than a hair."""
RANGES_MAX: Final = 64
SIZES_MAX: Final = 200

_STYLE: Final = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #8886}th{white-space:nowrap}
td{overflow-wrap:break-word;max-width:30rem}
.wide{overflow-x:auto;background:linear-gradient(90deg,Canvas 40%,transparent) 0/3rem 100% no-repeat local,
linear-gradient(270deg,Canvas 40%,transparent) 100%/3rem 100% no-repeat local,
linear-gradient(90deg,#8889,transparent) 0/.8rem 100% no-repeat,
linear-gradient(270deg,#8889,transparent) 100%/.8rem 100% no-repeat}
figure{margin:0 0 1rem}figcaption{font-size:.9rem}
svg{width:100%;max-width:42rem;height:auto}svg text{font:12px system-ui,sans-serif;fill:currentColor}
.bar{fill:#4477aa}.more{fill:url(#stripes)}.axis{stroke:currentColor;stroke-width:1}
"""
_STRIPES: Final = (
    '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#fff"/><rect width="3" height="6" fill="#4477aa"/></pattern></defs>'
)

_WORDS: Final = (
    "<p><small>A <b>checkpoint</b> is the state after a batch, under the number of its commit. An <b>epoch</b> is "
    "one opening of the job for writing: each gets the next number, and shuts out the ones before. Keys belong to "
    "<b>key groups</b>, which make up the <b>ranges</b> that are written and restored apart. A range is a "
    "<b>base</b>, the whole state at some checkpoint, and the <b>changelog</b> behind it, in change sets. A "
    "<b>restore</b> reads both, from copies on the local disk where they are intact, otherwise from the "
    "<b>primary</b>, the store that decides. The <b>hint</b> is an object that says where a search for the newest "
    "entry begins.</small></p>"
)
_VERDICTS: Final = {
    "retained": "an entry of the log that is kept",
    "milestone": "a commit that is kept for its age, or what only such commits point into",
    "needed": "a checkpoint that is kept points into it",
    "hint": "says where a search in the log begins",
    "savepoint": "the marker of a savepoint",
    "mirror": "what the table of a mirror has",
    "live": "its writer may be about to make the commit that points into it",
    "young": "garbage, and not old enough to be deleted",
    "foreign": "not of this library, so it is left alone",
    "superseded": "only what is no longer kept points into it: deleted",
    "orphan": "made by a writer that is gone, and nothing points into it: deleted",
}


def page(found: JobReport, log: Inspection) -> str:
    """The page on a job, from its report and its log."""
    title = f"job {found.job}"
    commits = [row for row in log.log if row.kind == "commit" and row.on_branch][-COMMITS_MAX:]
    verdicts = "".join(f"<li>{name}: {_VERDICTS[name]}</li>" for name in found.verdicts if name in _VERDICTS)
    return document(
        title,
        (
            *_summary(found),
            _WORDS,
            *_history(commits, [row for row in log.log if row.kind == "claim"]),
            *_restores(commits),
            *_ranges(found.ranges),
            *_sizes(found.sizes),
            "<h2>States</h2>",
            table(("state", "kind", "schema"), ((each.name, each.kind, each.schema) for each in found.states)),
            "<h2>Objects</h2>",
            "<p>Where the objects lie, by the first part of their names; <code>newest</code> is the hint.</p>",
            _totals("place", found.places),
            "<p>What a sweep would say of each object now; it deletes what is superseded or an orphan.</p>",
            _totals("verdict of a sweep", found.verdicts),
            f"<ul>{verdicts}</ul>",
            *_savepoints(found),
        ),
    )


def document(title: str, parts: Iterable[str]) -> str:
    """A page of HTML with this title, and these parts as they are."""
    body = "\n".join((f"<h1>{escape(title)}</h1>", *parts))
    metas = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"{metas}<title>{escape(title)}</title><style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _summary(found: JobReport) -> Iterator[str]:
    source = found.newest.newest_mark
    batch = "" if source is None else f", batch {source.batch_id} of query {source.query_id}"
    yield f"<p>Checkpoint {found.newest.checkpoint_id} at {_time(found.newest.committed_at_s)}{escape(batch)}; epoch "
    yield f"{found.newest.epoch}; {found.max_parallelism} key groups; release {escape(found.release or '-')}.</p>"
    if found.pace is not None:
        yield f"<p>{found.pace.puts} PUTs in {found.pace.seconds:.0f} s cost at least "
        yield f"{found.pace.usd_month:.2f} USD in 30 days, storage aside.</p>"


def _history(commits: Sequence[LogRow], claims: Sequence[LogRow]) -> Iterator[str]:
    yield "<h2>Checkpoints over time</h2>"
    if not commits:
        yield "<p>No checkpoint can be read.</p>"
        return
    names = [str(row.checkpoint_id) for row in commits]
    times = [row.at_s or 0.0 for row in commits]
    since = [0.0, *(max(0.0, at - before) for before, at in pairwise(times))]
    yield _bars("Seconds since the checkpoint before", names, since, lambda value: f"{value:.1f} s")
    sizes = [float(row.object_bytes + row.size_bytes) for row in commits]
    yield _bars("Bytes that a checkpoint points into, and its own", names, sizes, size)
    opened = [row for row in claims if row.at_s is not None]
    yield f"<p>{len(opened)} times the job was opened and restored, as far as the log is kept.</p>"
    if opened:
        yield table(
            ("epoch", "opened at", "continues entry"),
            ((str(row.epoch), _time(row.at_s), "-" if row.parent is None else str(row.parent)) for row in opened[-10:]),
        )


def _restores(commits: Sequence[LogRow]) -> Iterator[str]:
    found = [(row, row.restored) for row in commits if row.restored is not None]
    yield "<h2>Where restores came from</h2>"
    if not found:
        yield "<p>No checkpoint that is kept says that state was read before it.</p>"
        return
    yield _bars(
        "Bytes read before each of these checkpoints: plain from local copies, striped from the primary",
        [str(row.checkpoint_id) for row, _ in found],
        [float(source.bytes_local) for _, source in found],
        size,
        more=[float(source.bytes_primary) for _, source in found],
    )
    yield table(
        ("before checkpoint", "local files", "their bytes", "files of the primary", "their bytes", "seconds"),
        (
            (
                *(str(row.checkpoint_id), str(source.files_local), size(source.bytes_local)),
                *(str(source.files_primary), size(source.bytes_primary), f"{source.seconds:.2f}"),
            )
            for row, source in found[-10:]
        ),
    )


def _sizes(rows: Sequence[SizeRow]) -> Iterator[str]:
    yield "<h2>Sizes of the states</h2>"
    if not rows:
        yield "<p>The checkpoint does not say how much there is of each state.</p>"
        return
    heads, *cells = size_cells(rows)
    yield table(("state", *heads[:-1]), ((row[-1], *row[:-1]) for row in cells))
    names = [f"{' and '.join(row.states)} {row.key_groups}" for row in rows[:SIZES_MAX]]
    for what, shown, values in (
        ("Keys", _count, [float(row.keys) for row in rows]),
        ("Bytes", size, [float(row.size_bytes) for row in rows]),
    ):
        yield _bars(f"{what} of each state, range by range", names, values[:SIZES_MAX], shown, over_time=False)


def _count(keys: float) -> str:
    return f"{keys:.0f} key{'' if keys == 1 else 's'}"


def _ranges(ranges: Sequence[RangeRow]) -> Iterator[str]:
    totals = [row.base_bytes + row.changelog_bytes for row in ranges]
    mean = sum(totals) / max(1, len(totals))
    yield "<h2>Key groups</h2>"
    if len(ranges) == 1:
        yield f"<p>One range, {size(sum(totals))}.</p>"
    else:
        yield (
            f"<p>{len(ranges)} ranges, {size(sum(totals))}; the largest is "
            f"{max(totals, default=0) / max(1.0, mean):.2f} times the mean.</p>"
        )
    shown = ranges[:RANGES_MAX]
    yield _bars(
        "Bytes of each range: plain for its bases, striped for its changelog",
        [row.key_groups for row in shown],
        [float(row.base_bytes) for row in shown],
        size,
        more=[float(row.changelog_bytes) for row in shown],
        over_time=False,
    )
    yield table(
        ("key groups", "bases", "their bytes", "change sets", "their bytes", "operator state"),
        map(range_numbers, shown),
    )


def _savepoints(found: JobReport) -> Iterator[str]:
    if found.savepoints:
        yield "<h2>Savepoints</h2>"
        yield table(
            ("savepoint", "checkpoint", "committed at"),
            ((each.name, str(each.checkpoint_id), _time(each.committed_at_s)) for each in found.savepoints),
        )


def _totals(head: str, totals: Mapping[str, tuple[int, int]]) -> str:
    return table(
        (head, "objects", "bytes"), ((name, str(count), size(octets)) for name, (count, octets) in totals.items())
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, escaped."""
    lines = ['<div class="wide"><table><tr>' + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join((*lines, "</table></div>"))


def _bars(
    caption: str,
    names: Sequence[str],
    values: Sequence[float],
    shown: Callable[[float], str],
    *,
    more: Sequence[float] = (),
    over_time: bool = True,
) -> str:
    """A bar for each value, with what is `more` stacked upon it; a single value is a sentence.

    The axis has the highest value and its half. The caption has the highest, and `over_time` the last; each bar has a
    title.
    """
    tops = more or [0.0] * len(values)
    totals = [value + top for value, top in zip(values, tops, strict=True)]
    titles = [
        f"{name}: {shown(value)}" + (f" and {shown(top)}" if more else "")
        for name, value, top in zip(names, values, tops, strict=True)
    ]
    if len(totals) <= 1:
        return f"<p>{escape(caption)}. {escape(titles[0] if titles else 'None')}.</p>"
    highest = max(totals) or 1.0
    step = (WIDTH - AXIS) / len(values)
    width = min(BAR_MAX, max(0.5, step * 0.8))
    drawn: list[str] = []
    for place, (title, value, top) in enumerate(zip(titles, values, tops, strict=True)):
        low, high = (HEIGHT * part / highest for part in (value, value + top))
        left = AXIS + place * step
        drawn.append(f"<g><title>{escape(title)}</title>{_rectangle(left, width, 0.0, low, 'bar')}")
        drawn.append(f"{_rectangle(left, width, low, high, 'more') if top else ''}</g>")
    last_x = AXIS + (len(values) - 1) * step + width
    drawn.append(_text(AXIS, HEIGHT + 16, names[0]))
    drawn.append(_text(max(last_x, AXIS + 2 * BAR_MAX), HEIGHT + 16, names[-1], anchor="end"))
    drawn.extend(
        _text(AXIS - 6, HEIGHT * (1 - part) + 4, shown(highest * part), anchor="end") for part in (0.0, 0.5, 1.0)
    )
    last = f"; last: {shown(totals[-1])}" if over_time else ""
    label = f"{caption}. Highest: {shown(highest if any(totals) else 0.0)}{last}."
    return (
        f'<figure><svg viewBox="0 -8 {WIDTH} {HEIGHT + 30}" role="img" aria-label="{escape(label)}">{_STRIPES}'
        f'{"".join(drawn)}<line class="axis" x1="{AXIS}" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}"/></svg>'
        f"<figcaption>{escape(label)}</figcaption></figure>"
    )


def _text(x: float, y: float, said: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _rectangle(left: float, width: float, low: float, high: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{HEIGHT - high:.1f}" width="{width:.1f}" height="{high - low:.1f}"/>'
    )


def _time(at_s: float | None) -> str:
    if at_s is None:
        return "-"
    return dt.datetime.fromtimestamp(at_s, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


_BEYOND: Final = (
    "<p>An erasure knows what the job keeps. It says nothing of local copies on hosts that were not given to it, of "
    "caches of running processes, receivers of output, mirrors, exports and clones, of versions and backups of the "
    "bucket, of Spark's checkpoint and of the source.</p>"
)


def erasure_page(done: EraseReport) -> str:
    """The page on an erasure or a dry run, for an auditor. The keys are not on it."""
    return document(f"erasure in job {done.job}", _erasure(done))


def _erasure(done: EraseReport) -> Iterator[str]:
    yield "<ul>"
    for line in erase_lines(msgspec.structs.replace(done, holders=())):
        yield f"<li>{escape(line)}</li>"
    yield f"<li>states: {escape(', '.join(done.states))}</li></ul>"
    yield "<h2>Objects that were written again without the keys</h2>"
    yield table(("object",), ((key,) for key in done.rewritten))
    yield "<h2>Objects that have the keys, or may, until a sweep deletes them</h2>"
    yield _holders(done.holders)
    yield _BEYOND


def proof_page(job: str, proof: ErasureProof) -> str:
    """The page on the proof."""
    *_, verdict = proof_lines(proof)
    parts = [f"<p><b>{escape(verdict)}</b></p>", "<h2>Objects that may have the keys</h2>", _holders(proof.holders)]
    return document(f"proof of an erasure in job {job}", [*parts, _BEYOND])


def _holders(holders: Iterable[KeyHolder]) -> str:
    return table(
        ("object", "bytes", "a sweep may delete it from", "why"),
        ((each.key, size(each.size_bytes), utc(each.sweepable_from_s), each.reason) for each in holders),
    )


def draw(lines: Iterable[str], path: Path) -> None:
    """Draw the lines as a picture in SVG or HTML, as the file's suffix says. Replaces the file. Raises `InputError`."""
    if path.suffix not in (".svg", ".html"):
        raise InputError("a picture's name ends in .svg or .html", picture=str(path))
    try:
        from rich.console import Console  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InputError(needs_extra("a picture", "cli"), picture=str(path)) from error
    page = list(lines)
    console = Console(record=True, file=io.StringIO(), width=max(map(len, page), default=1), highlight=True)
    for line in page:
        console.print(line, markup=False, emoji=False)
    try:
        if path.suffix == ".svg":
            console.save_svg(str(path), title=page[0] if page else "")
        else:
            console.save_html(str(path))
    except OSError as error:
        raise InputError(f"the picture cannot be written: {error.strerror}", picture=str(path)) from error
