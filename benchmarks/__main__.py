"""`python -m benchmarks NAME [NAME ...]`: what was expected, what came out, and where we lost."""

import argparse
import importlib
from pathlib import Path

from benchmarks.contest import Report

BENCHMARKS = ("changelog", "checkpoint", "state", "rocksdb_bases", "restore", "values", "s3")
ON_DEMAND = ("processing", "spark")  # need the extra `spark`; and the last one Java, and time
HELP = f"any of: {', '.join(BENCHMARKS)}, and {', '.join(ON_DEMAND)}, which run only when they are named"


def main() -> None:
    """Run those that are named, or all but those on demand. A missed expectation is a result, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, *ON_DEMAND, []], help=HELP)
    parser.add_argument("--sizes", type=_sizes, default={}, help="of a benchmark that has any: files=4,rows=5000")
    parser.add_argument("--json", type=Path, help="a directory for the figures")
    arguments = parser.parse_args()
    for name in arguments.names or BENCHMARKS:
        print(f"{name}:")
        report = Report(name)
        importlib.import_module(f"benchmarks.{name}").run(report, **arguments.sizes)
        if arguments.json:
            arguments.json.mkdir(parents=True, exist_ok=True)
            report.save(arguments.json / f"{name}.json")


def _sizes(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (part.partition("=") for part in text.split(","))}


if __name__ == "__main__":
    main()
