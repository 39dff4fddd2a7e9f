"""The order of the tests names files that there are, and keeps Spark to as few processes as it can."""

from pathlib import Path

from tests.order import LONGEST, ON_SPARK, chosen

ROOT = Path(__file__).parents[2]
SPARK, OTHERS = LONGEST[0], "tests/log/test_interleavings.py"


def test_the_files_are_there() -> None:
    assert [name for name in (*LONGEST, *ON_SPARK) if not (ROOT / name).exists()] == []


def test_every_page_on_spark_is_named() -> None:
    """Otherwise its file would start one more Spark, in a process that has none."""
    pages = (ROOT / "tests" / "howto").glob("test_*.py")
    on_spark = {f"tests/howto/{page.name}" for page in pages if "pytest.mark.spark" in page.read_text()}
    assert on_spark == {name for name in ON_SPARK if name != "tests/spark/"}


def test_half_of_the_processes_begin_with_spark() -> None:
    """Each with the longest of its files; who runs out helps the others."""
    files = ["tests/a.py", "tests/spark/test_a.py", OTHERS, SPARK]
    assert [chosen(files, process, 4) for process in range(4)] == [SPARK, SPARK, OTHERS, OTHERS]
    assert [chosen(files, process, 3) for process in range(3)] == [SPARK, OTHERS, OTHERS]
    assert [chosen(files[:1], process, 2) for process in range(2)] == [files[0]] * 2
    assert [chosen(files[1:2], process, 2) for process in range(2)] == [files[1]] * 2
