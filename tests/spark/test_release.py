"""A release of Spark that is too old is told where the sink is made."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import statebackend as sb
from statebackend.errors import SettingsError
from statebackend.spark.release import check_release
from tests.knobs import settings_with


@pytest.mark.parametrize("release", ["3.5.6", "3.0.0", "2.4.8", "3.10.1"])
def test_pyspark_3_is_refused(release, monkeypatch) -> None:
    """By a setting error that names the release, before anything is opened."""
    monkeypatch.setattr(pyspark, "__version__", release)
    with pytest.raises(SettingsError, match=release):
        sb.spark.StatefulSink(lambda df, batch_id, backend: None, settings_with(job="j", primary="memory://p"))


def test_a_release_that_lacks_modules_is_refused_all_the_same(tmp_path: Path) -> None:
    """PySpark 3.5 has no data sources in Python: asking for the sink says so, not which module is missing."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.6'")
    code = (
        "import statebackend as sb\ntry:\n    sb.spark.StatefulSink\nexcept sb.errors.SettingsError as e:\n    print(e)"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(sb.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "3.5.6" in done.stdout, done.stderr


@pytest.mark.parametrize("release", ["4.0.0", "4.0.0.dev2", "4.3.0", "5.0.0", "10.0", "unknown"])
def test_any_later_one_passes(release) -> None:
    check_release(release)
