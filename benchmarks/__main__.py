"""`python -m benchmarks NAME [NAME ...]`: what was expected, what came out, and where we lost."""

import argparse
import importlib
import importlib.util
from pathlib import Path

from benchmarks.contest import Report

BENCHMARKS = (
    "changelog",
    "checkpoint",
    "recovery",
    "processing",
    "calls",
    "owners",
    "state",
    "restore",
    "rocksdb_bases",
    "values",
    "s3",
)
ON_DEMAND = ("spark", "upserts")  # need extras, Java, a server, and time
HELP = f"""any of: {", ".join(BENCHMARKS)}, and {", ".join(ON_DEMAND)}, which run only when they are named; or a part of
one, such as state.access"""


def main() -> None:
    """Run those that are named, or all but those on demand. A missed expectation is a result, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", type=_named, help=HELP)
    parser.add_argument("--sizes", type=_sizes, default={}, help="of a benchmark that has any: files=4,rows=5000")
    parser.add_argument("--json", type=Path, help="a directory for the figures")
    arguments = parser.parse_args()
    for name in arguments.names or BENCHMARKS:
        print(f"{name}:", flush=True)
        report = Report(name)
        importlib.import_module(f"benchmarks.{name}").run(report, **arguments.sizes)
        if arguments.json:
            arguments.json.mkdir(parents=True, exist_ok=True)
            report.save(arguments.json / f"{name}.json")


def _named(name: str) -> str:
    if name.partition(".")[0] not in BENCHMARKS + ON_DEMAND or importlib.util.find_spec(f"benchmarks.{name}") is None:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(BENCHMARKS + ON_DEMAND)}, nor a part of one")
    return name


def _sizes(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (part.partition("=") for part in text.split(","))}


if __name__ == "__main__":
    main()
