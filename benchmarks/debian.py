"""Programs from Debian's packages, unpacked into a folder: no root, no service, nothing left behind."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.servers import ServerError

DONE: Final = "unpacked"


def unpack(root: Path, *packages: str) -> None:
    """Fetch and unpack the packages and what they need, unless they are there. Raises `ServerError`.

    What is installed on the machine is not fetched. Where its lists of packages are missing, or name what the mirror
    has no more, lists are fetched first, into the folder.
    """
    if (root / DONE).exists():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServerError(f"no apt-get and dpkg here: {packages[0]} comes from Debian's packages")
    fetched = root / "packages"
    fetched.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(fetched, packages)
    except ServerError:
        lists = _own_lists(root)
        run_program(["apt-get", *lists, "update"], {**os.environ}, fetched)
        _fetch(fetched, packages, lists)
    for package in fetched.glob("*.deb"):
        run_program(["dpkg", "-x", str(package), str(root)], {**os.environ}, fetched)
    (root / DONE).touch()


def run_program(command: Sequence[str], variables: Mapping[str, str], directory: Path) -> str:
    """What the program prints. Raises `ServerError` with what it complains of, if it fails."""
    ended = subprocess.run(command, env=variables, cwd=directory, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ServerError(f"{' '.join(command)} failed: {ended.stderr[-1000:]}")
    return ended.stdout


def _fetch(fetched: Path, packages: Sequence[str], lists: Sequence[str] = ()) -> None:
    plan = run_program(
        ["apt-get", *lists, "install", "--simulate", "--no-install-recommends", *packages], {**os.environ}, fetched
    )
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    if names:  # else all of it is installed already
        run_program(["apt-get", *lists, "download", *names], {**os.environ}, fetched)


def _own_lists(root: Path) -> list[str]:
    """Options of apt by which it keeps its lists in the folder, where they may be written without root."""
    (root / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    options = [f"Dir::State::Lists={root}/lists", "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="]
    options.append("APT::Sandbox::User=root")  # the user that apt becomes otherwise may not come into the folder
    return [word for option in options for word in ("-o", option)]
