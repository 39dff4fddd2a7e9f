"""Refuses a table whose folder is not apart from the job's own files.

In the folder of the job a table's files are strangers; and what looks after a table takes the files that it does not
know for garbage: Delta's VACUUM would delete a job that lies below it.
"""

import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from statebackend.errors import InputError
from statebackend.settings import Settings

_ALIKE: Final = {"s3a": "s3", "s3n": "s3"}


def check_apart(url: str, settings: Settings, *, place: str) -> None:
    """Raise `InputError` for a folder that is that of the job or of its local copies, lies in it, or has it within.

    `url`: of the folder, or its path. It may ask the disk where links lead to: call it in a thread.
    """
    folder = _parts(url)
    for own in (f"{settings.primary}/{settings.job}", *map(str, settings.local)):
        theirs = _parts(own)
        if folder[: len(theirs)] == theirs or theirs[: len(folder)] == folder:
            raise InputError(
                "the mirror's table and the job's own files must lie apart, neither within the other: give the table"
                " another folder",
                target=place,
                files=own,
            )


def _parts(url: str) -> Sequence[str]:
    """The scheme and the authority, and the names on the way from there."""
    found = urlsplit(url)
    if found.scheme in ("", "file"):
        return ["file", "", *filter(None, os.path.realpath(found.path if found.scheme else url).split("/"))]
    if found.scheme in ("abfs", "abfss"):  # container@account.dfs.core.windows.net
        container, _, host = found.netloc.partition("@")
        return ["azure", host.partition(".")[0], container, *filter(None, found.path.split("/"))]
    return [_ALIKE.get(found.scheme, found.scheme), found.netloc, *filter(None, found.path.split("/"))]
