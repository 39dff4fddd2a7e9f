"""Results as tables of Markdown. A contest that was not run leaves a line that says how to run it."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.results import MeasuredRecord, Result

Column = Callable[[Sequence[float]], str]


def machine(results: Sequence[Result]) -> str:
    """The machine, the versions and the commits of all runs."""
    lines = ["| benchmark | begun (UTC) | took | commit | machine |", "| --- | --- | --- | --- | --- |"]
    for each in results:
        where = f"{each.machine['processor']}, {each.machine['cores']} cores, {each.machine['memory']}"
        quick = ", quick" if each.quick else ""
        took = f"{each.seconds / 60:.1f} min{quick}"
        lines.append(f"| {each.benchmark} | {each.begun[:16].replace('T', ' ')} | {took} | `{each.commit}` | {where} |")
    versions: dict[str, str] = {}
    for each in results:
        versions |= each.versions
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    return "\n".join([*lines, "", f"Versions: {told}.", ""])


def milliseconds(results: Sequence[Result]) -> str:
    """A batch without Spark, at each number of keys."""
    return _by_size(results, "upserts", "a batch", "ms")


def megabytes(results: Sequence[Result]) -> str:
    """Bytes that a batch made each of them write."""
    return _by_size(results, "upserts", "written for a batch", "MB")


def spark(results: Sequence[Result]) -> str:
    """A batch on Spark, at each number of keys, the key frequencies apart."""
    parts = [
        (f"Keys {name}:", {"zipf": zipf}) for zipf, name in ((True, "as uneven as in most traffic"), (False, "uniform"))
    ]
    found = [f"{title}\n\n{_by_size(results, 'spark', 'a batch on Spark', 'ms', **at)}" for title, at in parts]
    return "\n".join(found)


def python_apis(results: Sequence[Result]) -> str:
    """A batch on Spark, beside Spark's state for Python functions, and the chart of it."""
    chart = "![Milliseconds of a batch on Spark, its Python functions included](performance/python.svg)\n\n"
    table = _by_size(results, "spark.python_apis", "a batch on Spark, Python APIs", "ms")
    return chart + table if find(results, "spark", "a batch on Spark, Python APIs") else table


def kills(results: Sequence[Result]) -> str:
    """Rows counted twice by each."""
    found = find(results, "kills", "rows counted twice")
    if not found:
        return _missing("kills")
    head = f"| after {found[0].at['kills']:g} kills | rows counted twice |"
    rows = (f"| {name} | {rounds[0]:,.0f} |" for name, rounds in found[0].rounds.items())
    return "\n".join([head, "| --- | --- |", *rows, ""])


def checkpoint(results: Sequence[Result]) -> str:
    """A checkpoint at each number of keys."""
    return _by_size(results, "checkpoint", "a checkpoint", "ms")


def recovery(results: Sequence[Result]) -> str:
    """From SIGKILL to the first value."""
    return _by_size(results, "recovery", "recovery after SIGKILL", "s")


def size(results: Sequence[Result]) -> str:
    """Batches and openings of columns in memory and over runs, and their memory, at each number of keys."""
    if not find(results, "size", "a batch by size, uniform"):
        return _missing("size")
    parts = (
        ("size-batches", "a batch by size, uniform", "ms", "Milliseconds of a batch of 33,000 keys over"),
        ("size-opening", "first value after SIGKILL by size", "s", "Seconds to the first value over"),
    )
    charts = (
        f"![{title} the number of keys](performance/{name}.svg)\n\n{_by_size(results, 'size', what, unit)}"
        for name, what, unit, title in parts
    )
    memory = _by_size(results, "size", "own memory by size", "MB")
    return "\n".join([*charts, memory, _by_size(results, "spark.over_runs", "a batch on Spark over runs", "ms")])


def parallelism(results: Sequence[Result]) -> str:
    """Rows a second of each."""
    found = find(results, "spark", "rows a second")
    if not found:
        return _missing("spark.parallel")
    head = f"| {found[0].at['keys']:,.0f} keys | rows a second: median (least to most) |"
    rows = (f"| {name} | {spread(rounds)} |" for name, rounds in found[0].rounds.items())
    return "\n".join([head, "| --- | --- |", *rows, ""])


def copies(results: Sequence[Result]) -> str:
    """Both copies, and the primary alone."""
    found = find(results, "changelog", "persists")
    if not found:
        return _missing("changelog.copies")
    rows = (f"| {name} | {spread(rounds)} |" for name, rounds in found[0].rounds.items())
    return "\n".join(["| copies | seconds for 40 persists |", "| --- | --- |", *rows, ""])


def delay(results: Sequence[Result]) -> str:
    """A month of requests for each delay."""
    found = find(results, "changelog", "a month of uploads")
    if not found:
        return _missing("changelog.batching")
    rows = (
        f"| {float(each.at['delay_s']) * 1000:g} ms | {figures[0]:,.0f} USD |"
        for each in found
        for figures in each.rounds.values()
    )
    head = f"| persist delay | uploads of a month, {next(iter(found[0].rounds))} |"
    return "\n".join([head, "| --- | --- |", *rows, ""])


def expectations(results: Sequence[Result]) -> str:
    """The misses: what was expected before, and what came out. The history has those that were kept, too."""
    lines = [line for result in results for line in result.lines]
    missed = [line for line in lines if line.verdict == "missed"]
    rows = (f"| {line.claim} | {line.expected} | {figure(line.measured)} {line.unit} |" for line in missed)
    counts = f"{len(lines)} expectations, {len(missed)} missed. [All of them, run by run](performance-history.md)."
    return "\n".join([counts, "", "| missed | expected | measured |", "| --- | --- | --- |", *rows, ""])


def find(results: Sequence[Result], benchmark: str, what: str, **at: object) -> list[MeasuredRecord]:
    """The contests of that name, with those sizes, in the order in which they were run; parts count as the whole."""
    whole = benchmark.partition(".")[0]
    return [
        each
        for result in results
        if result.benchmark.partition(".")[0] == whole
        for each in result.measured
        if each.what == what and all(each.at.get(name) == value for name, value in at.items())
    ]


def figure(value: float) -> str:
    """Three digits that count."""
    return f"{float(f'{value:.3g}'):,.10g}"


def spread(rounds: Sequence[float]) -> str:
    """The median, and what it lies between if there is more than one round."""
    middle = figure(statistics.median(rounds))
    return middle if len(rounds) == 1 else f"{middle} ({figure(min(rounds))} to {figure(max(rounds))})"


def _by_size(results: Sequence[Result], benchmark: str, what: str, unit: str, **at: object) -> str:
    found = find(results, benchmark, what, **at)
    if not found:
        return _missing(benchmark)
    sizes: Mapping[float, MeasuredRecord] = {float(each.at["keys"]): each for each in found}
    names = list(dict.fromkeys(name for each in found for name in each.rounds))
    head = [f"| {unit}, median (least to most) |", *(f" {size:,.0f} keys |" for size in sorted(sizes))]
    lines = ["".join(head), "| --- |" + " --- |" * len(sizes)]
    for name in names:
        cells = (spread(sizes[size].rounds[name]) if name in sizes[size].rounds else "" for size in sorted(sizes))
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join([*lines, ""])


def _missing(benchmark: str) -> str:
    return f"Not measured for this page: `nox -s bench -- {benchmark}`.\n"
