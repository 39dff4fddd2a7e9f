"""What a mirror is refused, each by an error of its own, before anything is written; and what is no error."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.exceptions
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

from statebackend._mirroring.keeping_up import open_mirroring
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.target import MirrorTarget
from statebackend._mirroring.targets.apart import check_apart
from statebackend._mirroring.targets.delta import MIRROR_KEY, NUMBER_KEY, DeltaTarget
from statebackend._mirroring.targets.iceberg import IcebergTarget
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend.errors import (
    InputError,
    MirrorSchemaError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)
from statebackend.testing import FaultyStore
from tests.knobs import replaced, settings_with
from tests.mirroring.mirrored import EWR, JFK, LGA, SETTINGS, Job
from tests.mirroring.places import PLACES, iceberg_catalog

FOLDERS: dict[str, Callable[[Path], MirrorTarget]] = {
    "folder": ParquetTarget,
    "delta": lambda folder: DeltaTarget(str(folder)),
}


def files_below(root: Path) -> list[str]:
    """All files, by their paths."""
    return sorted(f"{folder}/{name}" for folder, _, names in os.walk(root) for name in names)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize(
    "where", ["state/fleet", "state/fleet/legs", "state", ".", "linked/fleet", "state/legs/../fleet", "local/legs"]
)
async def test_a_table_among_the_jobs_own_files_is_refused(name: str, where: str, tmp_path: Path) -> None:
    """Also by another name for the folder. What looks after the table would take the job's files for garbage."""
    (tmp_path / "state").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "state")
    settings = replaced(SETTINGS, primary=f"file://{tmp_path}/state", local=(f"{tmp_path}/local",))
    job = Job()
    job.store, job.settings = None, settings  # type: ignore[assignment]
    await job.commit({"a": EWR})
    before = files_below(tmp_path)
    with pytest.raises(InputError, match="must lie apart") as raised:
        await job.mirror(FOLDERS[name](tmp_path / where))
    assert f"{tmp_path}" in raised.value.facts["target"]
    assert files_below(tmp_path) == before
    report = await job.mirror(FOLDERS[name](tmp_path / "state" / "legs"))  # beside the job, in its primary
    assert report.anew == ("it is new",)


@pytest.mark.parametrize(
    ("url", "is_apart"),
    [
        ("s3://air/state/fleet", False),
        ("s3a://air/state/fleet/legs", False),
        ("s3://air", False),
        ("s3://air/state/fleet2", True),
        ("s3://air2/state/fleet", True),
        ("/air/state/fleet", True),
    ],
)
def test_folders_in_a_bucket(url: str, *, is_apart: bool) -> None:
    settings = settings_with(job="fleet", primary="s3://air/state/")
    if is_apart:
        check_apart(url, settings, place=url)
        return
    with pytest.raises(InputError, match="must lie apart"):
        check_apart(url, settings, place=url)


def test_a_folder_in_azure_has_two_names() -> None:
    settings = settings_with(job="fleet", primary="azure://airline/air/state")
    with pytest.raises(InputError, match="must lie apart"):
        check_apart("abfss://air@airline.dfs.core.windows.net/state/fleet", settings, place="delta")
    check_apart("abfss://air@other.dfs.core.windows.net/state/fleet", settings, place="delta")


@pytest.mark.parametrize(
    "to",
    [
        "delta:foo://bucket/legs",
        "delta:s4://bucket/legs",
        "postgresql://me:secret@host/db?table=legs&nonsense=1",
        "postgresql://me:secret@ho st/db?table=legs",
        "postgresql://me:secret@[host/db?table=legs",
    ],
)
def test_a_url_that_nobody_understands_is_refused_where_it_is_named(to: str) -> None:
    """And no password is shown."""
    with pytest.raises(InputError) as raised:
        Mirror("legs", to=to)
    assert "secret" not in f"{raised.value} {raised.value.facts}"
    assert raised.value.__cause__ is None or "secret" not in f"{raised.value.__cause__}"


@pytest.mark.parametrize("properties", [{}, {"type": "nonsense"}, {"uri": "nonsense://x"}, {"type": "sql"}])
async def test_a_catalog_that_there_is_not(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", "/nowhere")
    job = Job()
    await job.commit({"a": EWR})
    with pytest.raises(InputError, match="correct the catalog"):
        await job.mirror(IcebergTarget("air.legs", catalog="there_is_none", **properties))


async def test_a_state_without_keys_is_read_once_for_each_commit(tmp_path: Path) -> None:
    """Such as one that a job will fill some day, beside states that are large: it was read again with every look."""
    job = Job(inline_bytes_max=0)
    await job.work(
        lambda backend: (backend.value_state("legs", int), backend.value_state("other", int).update({"x": 1}))
    )
    store = FaultyStore(job.store)
    async with open_mirroring(job.settings, Mirror("legs", to=tmp_path), store=store, clock=job.clock) as mirroring:
        for _ in range(3):
            await mirroring.catch_up()
        assert len([key for _, key in store.calls if "segments/" in key]) == 1
        await job.commit({"a": 1}, type_=int)
        await mirroring.catch_up()
    assert mirroring.report.rows == 2


# ------------------------------------------------------------------------------------------- tables of another schema


def _spoil_delta(root: Path, schema: pa.Schema, partition_by: list[str]) -> None:
    """Give the mirror's own table another schema, as somebody would who makes it anew."""
    newest = DeltaTable(root / "delta").history(1)[0]
    said = {name: str(newest[name]) for name in (MIRROR_KEY, NUMBER_KEY)}
    shutil.rmtree(root / "delta")  # earlier releases of deltalake overwrite no partitioning
    write_deltalake(
        root / "delta",
        pa.table({field.name: pa.nulls(1, field.type) for field in schema}),
        partition_by=partition_by,
        commit_properties=CommitProperties(custom_metadata=said),
    )


async def _mirrored_delta(root: Path, form: Any) -> tuple[Job, pa.Schema]:
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(DeltaTarget(str(root / "delta")), form=form)
    await job.commit({"b": LGA})
    return job, pa.schema(DeltaTable(root / "delta").schema().to_arrow())


@pytest.mark.parametrize("form", ["table", "log"])
@pytest.mark.parametrize("spoiled", ["lacks a column", "of another type", "partitioned in another way"])
async def test_a_delta_table_that_somebody_has_changed(spoiled: str, form: Any, tmp_path: Path) -> None:
    """The column is named, and the table stays as it is."""
    job, schema = await _mirrored_delta(tmp_path, form)
    at, column = schema.get_field_index("batch_id"), "batch_id"
    partition_by = ["partition"] if form == "table" else []
    if spoiled == "lacks a column":
        schema = schema.remove(at)
    elif spoiled == "of another type":
        schema = schema.set(at, pa.field("batch_id", pa.string()))
    else:
        partition_by, column = ["key_group"], "key_group"
    _spoil_delta(tmp_path, schema, partition_by)
    before = DeltaTable(tmp_path / "delta").version()
    with pytest.raises(MirrorSchemaError, match=spoiled) as raised:
        await job.mirror(DeltaTarget(str(tmp_path / "delta")), form=form)
    assert raised.value.facts["column"] == column
    assert DeltaTable(tmp_path / "delta").version() == before


async def test_an_iceberg_table_that_somebody_has_changed(tmp_path: Path) -> None:
    """A column that is missing, and one of another type; with `anew` the missing one is added."""
    job, catalog = Job(), iceberg_catalog(tmp_path)
    target = lambda: IcebergTarget("air.legs", catalog=catalog)  # noqa: E731
    await job.commit({"a": EWR})
    await job.mirror(target())
    await job.commit({"b": LGA})
    with catalog.load_table("air.legs").update_schema() as update:
        update.rename_column("batch_id", "other")
    with pytest.raises(MirrorSchemaError, match="lacks a column") as raised:
        await job.mirror(target())
    assert raised.value.facts["column"] == "batch_id"
    for before, after in (("other", "batch_id"), ("op", "x"), ("batch_id", "op"), ("x", "batch_id")):
        with catalog.load_table("air.legs").update_schema() as update:
            update.rename_column(before, after)
    with pytest.raises(MirrorSchemaError, match="another type"):
        await job.mirror(target())


async def test_a_namespace_that_there_is_not(tmp_path: Path) -> None:
    job, catalog = Job(), iceberg_catalog(tmp_path)
    await job.commit({"a": EWR})
    with pytest.raises(InputError, match="make the namespace"):
        await job.mirror(IcebergTarget("sea.legs", catalog=catalog))


class Overtaken:
    """A catalog in which another writer is quicker than each of the next `times` commits."""

    def __init__(self, root: Path, times: int) -> None:
        self._inside = iceberg_catalog(root)
        self.times = times

    def load_table(self, name: str) -> Any:
        found = self._inside.load_table(name)
        found.catalog = self
        return found

    def commit_table(self, *args: Any) -> Any:
        if self.times:
            self.times -= 1
            raise pyiceberg.exceptions.CommitFailedException("Table has been updated by another process")
        return self._inside.commit_table(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


@pytest.mark.parametrize("times", [1, 4])
async def test_an_iceberg_table_that_other_writers_change_meanwhile(times: int, tmp_path: Path) -> None:
    """Nothing of a change is there that met another one, so it is made anew: of two mirrors at once none fails."""
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(IcebergTarget("air.legs", catalog=iceberg_catalog(tmp_path)))
    await job.commit({"a": JFK})
    catalog = Overtaken(tmp_path, times)
    await job.mirror(IcebergTarget("air.legs", catalog=catalog))
    assert catalog.times == 0
    assert PLACES["iceberg"]("", tmp_path).rows() == await job.state()


async def test_an_iceberg_table_that_others_never_leave_alone(tmp_path: Path) -> None:
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(IcebergTarget("air.legs", catalog=iceberg_catalog(tmp_path)))
    await job.commit({"a": JFK})
    with pytest.raises(StoreUnavailableError, match="another writer"):
        await job.mirror(IcebergTarget("air.legs", catalog=Overtaken(tmp_path, 1000)))


@pytest.mark.parametrize("name", ["delta", "delta-log", "iceberg"])
async def test_a_table_that_is_gone_is_made_anew(name: str, tmp_path: Path) -> None:
    job, place = Job(), PLACES[name]("", tmp_path)
    await job.commit({"a": EWR})
    await job.mirror(place.target(), form=place.form)
    await job.commit({"b": LGA})
    if name == "iceberg":
        iceberg_catalog(tmp_path).drop_table("air.legs")
    else:
        shutil.rmtree(tmp_path / "delta")
    report = await job.mirror(place.target(), form=place.form)
    assert report.anew == ("the table was emptied, or put back to an older state",)
    assert place.rows() == await job.state()


# ------------------------------------------------------------------------------------------- what the libraries raise


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (OSError("Generic LocalFileSystem error: Permission denied (os error 13)"), StoreAccessError),
        (DeltaError("Generic S3 error: Client error with status 403 Forbidden: AccessDenied"), StoreAccessError),
        (OSError("Generic LocalFileSystem error: Operation not permitted (os error 1)"), StoreAccessError),
        (OSError("Generic LocalFileSystem error: Read-only file system (os error 30)"), StoreAccessError),
        (OSError("Generic LocalFileSystem error: No space left on device (os error 28)"), StoreFullError),
        (OSError("Generic LocalFileSystem error: Disk quota exceeded (os error 122)"), StoreFullError),
        (OSError("Generic S3 error: error sending request for url"), StoreUnavailableError),
        (CommitFailedError("a concurrent transaction"), StoreUnavailableError),
        (SchemaMismatchError("cannot cast"), InputError),
    ],
)
def test_what_deltalake_raises_is_told_in_our_words(error: Exception, ours: type[Exception], tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path))
    with pytest.raises(ours) as raised, target._translated():  # the border to a library
        raise error
    assert type(raised.value) is ours
    assert raised.value.facts["target"] == target.place  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (PermissionError(13, "Permission denied"), StoreAccessError),
        (OSError(30, "Read-only file system"), StoreAccessError),
        (pyiceberg.exceptions.ForbiddenError("403"), StoreAccessError),
        (OSError(28, "No space left on device"), StoreFullError),
        (OSError(5, "Input/output error"), StoreUnavailableError),
        (pyiceberg.exceptions.ServiceUnavailableError("503"), StoreUnavailableError),
        (pyiceberg.exceptions.CommitFailedException("concurrent"), StoreUnavailableError),
        (pyiceberg.exceptions.NoSuchNamespaceError("air"), InputError),
    ],
)
def test_what_pyiceberg_raises_is_told_in_our_words(error: Exception, ours: type[Exception], tmp_path: Path) -> None:
    target = IcebergTarget("air.legs", catalog=iceberg_catalog(tmp_path))
    with pytest.raises(ours) as raised, target._translated():  # the border to a library
        raise error
    assert type(raised.value) is ours


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is refused to root")
@pytest.mark.parametrize("name", ["folder", "delta", "delta-log", "iceberg"])
async def test_a_folder_without_rights(name: str, tmp_path: Path) -> None:
    job, place = Job(), PLACES[name]("", tmp_path)
    await job.commit({"a": EWR})
    await job.mirror(place.target(), form=place.form)
    await job.commit({"b": LGA})
    folders = [folder for folder, _, _ in os.walk(tmp_path) if folder != str(tmp_path)]
    for folder in folders:
        os.chmod(folder, 0o500)  # noqa: PTH101
    try:
        with pytest.raises(StoreAccessError):
            await job.mirror(place.target(), form=place.form)
    finally:
        for folder in folders:
            os.chmod(folder, 0o700)  # noqa: PTH101
    await job.mirror(place.target(), form=place.form)
    assert place.rows() == await job.state()
