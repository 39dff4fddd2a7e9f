"""Which Java is taken, and what the shim in front of a trimmed one lets through. The Javas are scripts."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.java import JavaError, find_java_home, probe, write_shim

FLAG = "--add-modules=jdk.incubator.vector"


def a_java(home: Path, version: str, *, trimmed: bool = False) -> Path:
    """A JAVA_HOME whose `java` answers like a real one of that version, and otherwise repeats its arguments."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    refusal = f'case "$*" in *{FLAG}*) exit 1 ;; esac' if trimmed else ":"
    command.write_text(f"""#!/bin/sh
{refusal}
case "$*" in
    *-XshowSettings:properties*)
        echo "    java.home = {home}" >&2
        echo "    java.specification.version = {version}" >&2 ;;
    *) for argument do echo "$argument"; done ;;
esac
""")
    command.chmod(0o755)
    return home


def environment(*, java_home: Path | None = None, path: Path | None = None) -> dict[str, str]:
    found = {"PATH": str(path / "bin") if path else ""}
    return found | ({"JAVA_HOME": str(java_home)} if java_home else {})


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    """Who sets JAVA_HOME means it."""
    chosen, other = a_java(tmp_path / "chosen", "17"), a_java(tmp_path / "other", "21")
    assert find_java_home(tmp_path / "shim", environment(java_home=chosen, path=other)) == chosen


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_java_too_old_for_spark_is_passed_over(tmp_path: Path, version: str) -> None:
    """Java 8 calls itself 1.8; neither that nor 11 is taken where a newer one can be had."""
    old, new = a_java(tmp_path / "old", version), a_java(tmp_path / "new", "17")
    assert find_java_home(tmp_path / "shim", environment(java_home=old, path=new)) == new


def test_trimmed_java_goes_behind_a_shim(tmp_path: Path) -> None:
    """A runtime that does not start with Spark's flag is reached through the shim, which then is the JAVA_HOME."""
    trimmed = a_java(tmp_path / "trimmed", "21", trimmed=True)
    shim = find_java_home(tmp_path / "shim", environment(java_home=trimmed))
    assert shim == tmp_path / "shim"
    behind = probe(shim / "bin" / "java")
    assert behind is not None
    assert (behind.home, behind.needs_shim) == (trimmed, False)


def test_shim_drops_the_one_flag_and_keeps_the_rest(tmp_path: Path) -> None:
    """Arguments with blanks, empty ones, and other flags arrive as they were, in order."""
    real = a_java(tmp_path / "a java home", "21", trimmed=True)
    command = write_shim(real, tmp_path / "shim") / "bin" / "java"
    arguments = ["-cp", "a b:c", FLAG, "--add-modules=java.sql", "", "Main", "$HOME"]
    told = subprocess.run([command, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.split("\n")[:-1] == [argument for argument in arguments if argument != FLAG]


def test_no_java_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variable, nor path, nor package."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(JavaError):
        find_java_home(tmp_path / "shim", environment())
