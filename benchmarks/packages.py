"""What lies in a built wheel and sdist: `python benchmarks/packages.py dist`. Only the standard library is needed.

The wheel has the library, its mark of types, its licence and its command, and nothing of the tests. The sdist has what
a wheel, the tests and the site are made of. The metadata name every extra, and every Python that is supported.
"""

import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).parents[1]
IN_SDIST: Final = (
    "LICENSE",
    "README.md",
    "benchmarks",
    "docs",
    "noxfile.py",
    "pyproject.toml",
    "statebackend",
    "tests",
)


def library() -> set[str]:
    """The files of the library, as the wheel should have them."""
    found = (ROOT / "statebackend").rglob("*")
    return {each.relative_to(ROOT).as_posix() for each in found if each.is_file() and "__pycache__" not in each.parts}


def check_wheel(path: Path) -> None:
    """Raise `AssertionError` if the wheel lacks a file, or has one too many."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (about,) = {PurePosixPath(each).parts[0] for each in names if ".dist-info/" in each}
        metadata = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
        commands = wheel.read(f"{about}/entry_points.txt").decode()
    own = {each for each in names if not each.startswith(f"{about}/")}
    assert own == library(), sorted(own ^ library())
    assert "statebackend/py.typed" in own
    assert f"{about}/licenses/LICENSE" in names
    assert "statebackend = statebackend.cli:main" in commands
    assert set(metadata.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])
    assert metadata["Requires-Python"] == project["requires-python"]
    assert metadata["Version"] in path.name
    changes = (ROOT / "docs" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {metadata['Version']}" in changes, "the changelog has nothing about this version"
    if not metadata.get_all("Project-URL"):
        print("NOTE: no project URLs: where the project is published is not decided")


def check_sdist(path: Path) -> None:
    """Raise `AssertionError` if something is missing, or lies there that no commit has."""
    with tarfile.open(path) as sdist:
        names = {PurePosixPath(each).parts[1] for each in sdist.getnames() if len(PurePosixPath(each).parts) > 1}
    assert names - {"PKG-INFO", ".gitignore"} == set(IN_SDIST), sorted(names)


def main() -> None:
    """Check the one wheel and the one sdist in a folder."""
    built = Path(sys.argv[1])
    (wheel,), (sdist,) = list(built.glob("*.whl")), list(built.glob("*.tar.gz"))
    check_wheel(wheel)
    check_sdist(sdist)
    print(f"{wheel.name} {wheel.stat().st_size / 1024:.0f} KiB, {sdist.name} {sdist.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
