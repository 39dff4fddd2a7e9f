"""What executors cannot do is said early, and in words that say what to do: settings, processors, workers."""

import gc
import shutil
import subprocess
import sys
import threading
import venv

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._processing.runner import ProcessorRunner
from statebackend._ranges.equal_ranges import ranges_of
from statebackend._ranges.range_owners import RangeTask
from statebackend.errors import BatchError, CorruptSegmentError, MissingObjectError, SettingsError
from statebackend.ids import CheckpointId, Epoch, all_key_groups
from statebackend.objectstore import MemoryStore
from statebackend.spark.executors import batch_job
from statebackend.spark.executors.placement import SALT
from statebackend.spark.executors.task_errors import TRACEBACK_CHARS_MAX, _of_user_code, error_in, range_failed
from statebackend.spark.executors.worker import BatchSpec, RunSpec, run
from statebackend.testing import ProcessorTester
from statebackend.uploaders import PrimaryUploader
from tests.spark.conftest import feed
from tests.spark.processors import Counting, split


@pytest.mark.parametrize(
    "options",
    [
        {"parallelism": None},
        {"parallelism": 0},
        {"parallelism": 129},
        {"settings": sb.Settings(job="j", primary="memory://m")},
        {"settings": sb.Settings(job="j", primary="file:///m", put_budget_usd_month=1.0)},
        {"store": object()},
        {"uploader": PrimaryUploader(MemoryStore())},
        {"function": lambda df, batch_id, backend: None, "key": ()},
        {"execution": "driver", "parallelism": 2},
        {"execution": "elsewhere"},
    ],
    ids=[
        "no parallelism",
        "parallelism 0",
        "more than max_parallelism",
        "memory",
        "a budget",
        "a store",
        "an uploader",
        "a function",
        "parallelism in the driver",
        "elsewhere",
    ],
)
def test_what_executors_cannot_share_is_refused_at_once(stream, open_sink, options) -> None:
    """Where it is written, and not in the first batch."""
    arguments = {"function": Counting(), "settings": stream.settings, "key": "key", "execution": "executors"}
    with pytest.raises(SettingsError):
        open_sink(**{**arguments, "parallelism": 2, **options})


def test_a_processor_that_does_not_pickle_says_so(stream, on_executors, read) -> None:
    """Before any task is sent."""
    processor = Counting()
    processor.lock = threading.Lock()
    feed(stream, "a")
    assert "cannot be sent to the workers" in stream.fail(on_executors(processor), plan=split)
    assert read(stream.settings).batches == []


def test_a_worker_of_another_release_says_so(stream, on_executors, monkeypatch) -> None:
    """In the first task, and in words that say what to do."""
    feed(stream, "a")
    monkeypatch.setattr(batch_job, "__version__", "0.0.0")
    message = stream.fail(on_executors(), plan=split)
    assert "SettingsError" in message
    assert "the driver 0.0.0" in message


def test_a_worker_without_the_package_says_so(tmp_path) -> None:
    """What Spark sends it needs nothing of ours before it can say that."""
    task = batch_job.task_of(b"", b"", release="1.0")
    sent = tmp_path / "task"
    sent.write_bytes(batch_job.pickled(task))
    code = f"""
import pickle, sys
sys.modules["statebackend"] = None
with open({str(sent)!r}, "rb") as file:
    list(pickle.load(file)([]))
"""
    worker = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    failure = error_in(worker.stderr)
    assert isinstance(failure, SettingsError)
    assert "install it" in str(failure)
    assert sys.executable in str(failure)


def bare(folder):
    """A Python that has nothing installed."""
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


def of_another_version(folder):
    """A Python of another minor version that Spark runs on, if there is one."""
    for minor in range(10, 15):
        if minor != sys.version_info.minor and (found := shutil.which(f"python3.{minor}")):
            if subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0:
                return found
    return pytest.skip("there is no Python of another minor version here")


@pytest.fixture
def workers(request, spark, monkeypatch, tmp_path) -> None:
    """They run what the parameter gives for a folder of its own."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", request.param(tmp_path / "python"))


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("workers", "advice"),
    [
        (bare, "the workers need pyarrow"),
        (of_another_version, "the driver's minor version"),
        (lambda folder: str(folder / "nowhere"), "the workers have no such Python"),
    ],
    ids=["without pyarrow", "another version", "none"],
    indirect=["workers"],
)
def test_workers_that_cannot_do_the_work_are_told_of(stream, on_executors, advice) -> None:
    """By the first task, from what real workers make Spark say; our words say what to do."""
    feed(stream, "a")
    message = stream.fail(on_executors(), plan=split)
    assert "SettingsError" in message
    assert advice in message


def test_a_package_that_is_too_old_is_told_from_work_that_failed() -> None:
    """The text is Spark's. An error of another kind stays what it is."""
    text = "Job aborted.\n[UNSUPPORTED_PACKAGE_VERSION] PyArrow >= 18.0.0 must be installed\n at org.apache.spark"
    assert isinstance(error_in(text), SettingsError)
    assert error_in("java.lang.InterruptedException") is None


def test_rows_of_two_slots_in_one_partition_are_refused(tmp_path) -> None:
    """However they came there: the task would write keys that another task owns. It says which range it was."""
    settings = sb.Settings(job="job", primary=f"file://{tmp_path}")
    owners = ranges_of(2, settings.max_parallelism)
    task = RangeTask(settings, all_key_groups(settings.max_parallelism), owners, Epoch(1), CheckpointId(0), None)
    runner = ProcessorRunner(Counting(), key="key", order_by=(), has_output=False)
    run_spec = batch_job.pickled(RunSpec(runner, None))
    batch_spec = batch_job.pickled(BatchSpec(task, (2, 0), ("key",), 0))
    batches = [pa.RecordBatch.from_pydict({"c0": ["a"], SALT: [salt]}) for salt in (2, 2, 0)]
    try:
        with pytest.raises(BatchError, match="several slots") as raised:
            list(run(run_spec, batch_spec, batches))
    finally:
        gc.unfreeze()
    assert str(owners[0]) in str(raised.value)


@pytest.mark.parametrize(
    ("error", "is_lost"), [(MissingObjectError, True), (CorruptSegmentError, True), (KeyError, False)]
)
def test_a_range_that_no_copy_can_restore_says_how_all_go_back(error, is_lost) -> None:
    """They have to go back to the same checkpoint, and know nothing of each other."""
    found = error_in(f"... {range_failed(error('a file is gone'), all_key_groups(12))} ...")
    assert isinstance(found, BatchError)
    assert ("fall_back_to_older=True" in found.message) is is_lost
    assert error.__name__ in str(found)


def fail_for_a_reason(price):
    """What a user's function may do."""
    try:
        return {}[price]
    except KeyError as error:
        raise ValueError(f"no {{{price}}}") from error


class Pricing(Counting):
    def process(self, key, rows, context):
        fail_for_a_reason("price")


def test_what_failed_on_an_executor_is_told_with_the_users_own_lines() -> None:
    """Also those of its cause. Spark passes on a text, and leaves both out; our frames in between say nothing."""
    with ProcessorTester(Pricing(), key="key") as tester, pytest.raises(ValueError) as caught:
        tester.batch([{"key": "a"}])
    told = str(error_in(f"before {range_failed(caught.value, all_key_groups(12))} behind"))
    for words in ("KeyError: 'price'", "in fail_for_a_reason", "in process\n", "ValueError: no {price}"):
        assert words in told
    assert "runner.py" not in told
    assert told.endswith("ValueError: no {price}")


def test_a_long_traceback_is_cut_and_one_of_ours_alone_is_told() -> None:
    """Its end says most. Where no line is the user's, ours are all that there is."""
    with pytest.raises(SettingsError) as caught:
        sb.Settings(job="", primary="")
    assert "settings" in _of_user_code(caught.value.with_traceback(caught.tb.tb_next))
    found = error_in(str(range_failed(ValueError("x" * 9_000 + "y"), all_key_groups(12))))
    assert found.facts["traceback"] == "x" * (TRACEBACK_CHARS_MAX - 1) + "y"
