"""The paths and URLs of one demo, and the settings of its backend."""

import asyncio
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import statebackend as sb
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import S3Settings, UploadSettings

JOB: Final = "flights"
S3_ENDPOINT: Final = "DEMO_S3_ENDPOINT"
"""Environment variable with the S3 endpoint, if the primary is in S3. Credentials come from the usual AWS chain."""
EXECUTION: Final = "DEMO_EXECUTION"
"""Environment variable that says where batches are processed: `driver` or `executors`."""
STATE: Final = "DEMO_STATE"
"""Environment variable with the kind of state: `values` or `columns`."""
LOOKUPS: Final = "DEMO_LOOKUPS"
"""Environment variable with the port of the service that is asked for airports, if any is."""
PARALLELISM: Final = 2
"""Ranges of aircraft on executors: one for each core of `local[2]`."""
BUCKET: Final = "flights"
_MARK: Final = ".statebackend-demo"


class WorkdirError(Exception):
    """The work directory contains something that the demo did not put there."""


@dataclass(frozen=True)
class Places:
    """One work directory and what is in it."""

    workdir: Path
    s3_endpoint: str = field(default_factory=lambda: os.environ.get(S3_ENDPOINT, ""))
    execution: str = field(default_factory=lambda: os.environ.get(EXECUTION, "driver"))
    state: str = field(default_factory=lambda: os.environ.get(STATE, "values"))

    lookups: int = field(default_factory=lambda: int(os.environ.get(LOOKUPS, "0")))

    @property
    def in_columns(self) -> bool:
        """True if the state is in columns."""
        return self.state == "columns"

    @property
    def on_executors(self) -> bool:
        """True if batches are processed on executors."""
        return self.execution == "executors"

    @property
    def days(self) -> Path:
        """The input: one Parquet file per day."""
        return self.workdir / "days"

    @property
    def primary(self) -> Path:
        """The primary copy, if it is a directory."""
        return self.workdir / "primary"

    @property
    def primary_url(self) -> str:
        """The URL of the primary copy."""
        return f"s3://{BUCKET}/demo" if self.s3_endpoint else self.primary.as_uri()

    def originals(self, name: str) -> list[bytes]:
        """The contents of all objects of that name in the primary: one, if all is well."""
        if not self.s3_endpoint:
            return [path.read_bytes() for path in self.primary.rglob(name)]
        return asyncio.run(self._originals_in_s3(name))

    async def _originals_in_s3(self, name: str) -> list[bytes]:
        async with open_s3_store(self.settings.primary, self.settings.s3) as store:
            return [await store.get(info.key) async for info in store.list("") if info.key.endswith(f"/{name}")]

    @property
    def local(self) -> Path:
        """The local copy."""
        return self.workdir / "local"

    @property
    def spark_checkpoint(self) -> Path:
        """Spark's own log of offsets and commits."""
        return self.workdir / "spark-checkpoint"

    @property
    def scratch(self) -> Path:
        """Spark's temporary files, which a killed process leaves behind."""
        return self.workdir / "scratch"

    @property
    def log(self) -> Path:
        """The standard error of the child processes."""
        return self.workdir / "children.log"

    @property
    def picture(self) -> Path:
        """The picture at the end."""
        return self.workdir / "batches.png"

    @property
    def settings(self) -> sb.Settings:
        """The backend's settings. A long grace gives every file a local copy, even on a slow disk, as the acts need."""
        return sb.Settings(
            job=JOB,
            primary=self.primary_url,
            s3=S3Settings(endpoint=self.s3_endpoint),
            local=(str(self.local),),
            secondary_grace_s=5.0,
            upload=UploadSettings(timeout_s=10.0),
        )

    def prepare(self) -> None:
        """Create the work directory, empty. Raises `WorkdirError` if it contains anything but an earlier demo."""
        mark = self.workdir / _MARK
        if self.workdir.exists() and not mark.exists() and any(self.workdir.iterdir()):
            raise WorkdirError(f"{self.workdir} is not empty and not from an earlier demo: choose another --workdir")
        shutil.rmtree(self.workdir, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        mark.touch()
