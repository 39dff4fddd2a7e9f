"""Where everything of one demo lies, and the settings of its backend."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import statebackend as sb

JOB: Final = "flights"
_MARK: Final = ".statebackend-demo"


class WorkdirError(Exception):
    """The work directory holds something that the demo did not put there."""


@dataclass(frozen=True)
class Places:
    """One work directory and what is in it."""

    workdir: Path

    @property
    def days(self) -> Path:
        """The input: one Parquet file per day."""
        return self.workdir / "days"

    @property
    def primary(self) -> Path:
        """The truth."""
        return self.workdir / "primary"

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
        """What the child processes wrote to their standard error."""
        return self.workdir / "children.log"

    @property
    def picture(self) -> Path:
        """The picture at the end."""
        return self.workdir / "batches.png"

    @property
    def settings(self) -> sb.Settings:
        """The backend's settings. The long grace makes the acts exact on a slow disk: each file has its local copy."""
        return sb.Settings(
            job=JOB,
            primary=self.primary.as_uri(),
            local=(str(self.local),),
            secondary_grace_s=5.0,
            upload_timeout_s=10.0,
        )

    def prepare(self) -> None:
        """Make the work directory, empty. Raises `WorkdirError` where it holds anything but an earlier demo."""
        mark = self.workdir / _MARK
        if self.workdir.exists() and not mark.exists() and any(self.workdir.iterdir()):
            raise WorkdirError(f"{self.workdir} is not empty and not from an earlier demo: choose another --workdir")
        shutil.rmtree(self.workdir, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        mark.touch()
