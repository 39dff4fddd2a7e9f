"""`python -m benchmarks.demo`: see the package. Exit status 1 if anything is not as it should be."""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.demo import drive, picture, report
from benchmarks.demo.airports import DELAY_MS, DIE_AFTER, REFUSE_EVERY
from benchmarks.demo.flights import DAYS_IN_DATA, read_data_set, write_days
from benchmarks.demo.places import BUCKET, EXECUTION, LOOKUPS, S3_ENDPOINT, STATE, Places, WorkdirError
from benchmarks.demo.story import DemoError
from benchmarks.servers import MINISTACK_PYTHON, ServerError, make_bucket, run_ministack
from benchmarks.slow_service import serving

DAYS_MIN = 10  # fewer leave no room for three kills


def main() -> int:
    """Play, verify, report."""
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 118)
    os.environ |= {EXECUTION: arguments.execution, STATE: arguments.state}  # for all processes of the demo
    try:
        with _primary(arguments.primary, arguments.workdir) as words, _service(asked=arguments.lookups):
            return _run(arguments, words, console)
    except ServerError as error:
        console.print("[bold red]FAILED[/]", escape(str(error)), highlight=False)
        return 1


def _run(arguments: argparse.Namespace, primary: str, console: Console) -> int:
    places = Places(arguments.workdir.absolute())
    started_s = time.monotonic()
    try:
        places.prepare()
    except WorkdirError as error:
        console.print("[bold red]FAILED[/]", escape(str(error)), highlight=False)
        return 1
    try:
        words = f"primary: {primary}; local copy: {places.local}; work: in the {places.execution}"
        words = words.replace("in the executors", "on executors") + f"; state: {places.state}"
        console.print(words, soft_wrap=True, highlight=False)
        return _play(places, arguments.days, console)
    except (DemoError, ModuleNotFoundError) as error:
        console.print("[bold red]FAILED[/]", escape(str(error)), highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    finally:
        shutil.rmtree(places.scratch, ignore_errors=True)
        console.print(f"{time.monotonic() - started_s:.0f} s in all", highlight=False)


@contextmanager
def _primary(kind: str, workdir: Path) -> Generator[str]:
    """Describe the primary. For `s3`, run a server with a bucket meanwhile, known to all processes of the demo."""
    if kind == "file":
        yield f"the directory {workdir.absolute() / 'primary'}"
        return
    python = os.environ.get(MINISTACK_PYTHON)
    if python is None:
        raise ServerError(f"--primary s3 needs MiniStack, and {MINISTACK_PYTHON} is not set: use nox -s demo")
    with tempfile.TemporaryDirectory() as logs, run_ministack(python, Path(logs) / "log") as server:
        variables = {
            S3_ENDPOINT: server.endpoint,
            "AWS_ACCESS_KEY_ID": server.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
        }
        os.environ.update(variables)
        asyncio.run(make_bucket(server, BUCKET))
        yield f"s3://{BUCKET}/demo on {server.name}, an S3 in memory, at {server.endpoint}"


@contextmanager
def _service(*, asked: bool) -> Generator[None]:
    """Run the service for lookups meanwhile, known to all processes of the demo."""
    with serving(DELAY_MS, refuse_every=REFUSE_EVERY, die_after=DIE_AFTER) if asked else nullcontext(0) as port:
        os.environ[LOOKUPS] = str(port)
        yield


def _play(places: Places, days: int, console: Console) -> int:
    rows = write_days(read_data_set(), places.days, days=days)
    console.print(f"{rows:,} flights of {days} days, one file each, in {places.days}", highlight=False)
    story = drive.play(places, days, console)
    verdict = drive.verify(places)
    picture.draw(story, places.picture)
    report.show(story, verdict, console)
    console.print(f"picture: {places.picture}", soft_wrap=True, highlight=False)
    return 1 if story.failures or verdict.different else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.demo", description="Stream flights, be killed, come out right.")
    parser.add_argument("--days", type=_days, default=DAYS_IN_DATA, help=f"{DAYS_MIN} to {DAYS_IN_DATA} (the default)")
    parser.add_argument(
        "--primary", choices=("file", "s3"), default="file", help="where the primary copy is stored (default: file)"
    )
    parser.add_argument(
        "--execution",
        choices=("driver", "executors"),
        default="driver",
        help="where batches are processed (default: driver)",
    )
    parser.add_argument(
        "--state",
        choices=("values", "columns"),
        default="values",
        help="a value per aircraft, or columns of all of them (default: values)",
    )
    parser.add_argument(
        "--lookups",
        action="store_true",
        help="ask a service for each airport, which is slow, refuses, and dies; with --state values",
    )
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path(".demo"),
        help="an empty folder, or that of an earlier demo, which is emptied (default: .demo)",
    )
    arguments = parser.parse_args()
    if arguments.lookups and arguments.state != "values":
        parser.error("--lookups goes with --state values")
    return arguments


def _days(text: str) -> int:
    days = int(text)
    if not DAYS_MIN <= days <= DAYS_IN_DATA:
        raise argparse.ArgumentTypeError(f"must be between {DAYS_MIN} and {DAYS_IN_DATA}")
    return days


if __name__ == "__main__":
    raise SystemExit(main())
