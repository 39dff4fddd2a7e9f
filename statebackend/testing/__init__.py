"""What you need to prove an extension of your own, and to make it fail when a test says so.

ObjectStoreConformance, UploaderConformance     subclass one, say what is to be tested, run pytest; override no test
FaultyStore, FaultyUploader                     wrappers that meet a plan's faults: Fail, Hold, Slow, Throttle, Torn
CrashStore                                      objects that outlive the process which writes them, and its crashes
run_virtual, VirtualClock, VirtualTimeLoop      time that jumps, so that a test about delays takes none

This is the only room that imports pytest, and nothing else of the library imports this room.
"""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{kit}" for kit in ("object_stores", "uploader_under_test", "uploaders")))

from statebackend.testing.crash_store import CrashedError, CrashStore  # noqa: E402  # after what makes asserts talk
from statebackend.testing.faults import (  # noqa: E402
    Fail,
    Fault,
    FaultyStore,
    FaultyUploader,
    Hold,
    Moment,
    Operation,
    Slow,
    Throttle,
    Torn,
)
from statebackend.testing.object_stores import ObjectStoreConformance  # noqa: E402
from statebackend.testing.uploader_under_test import UploaderUnderTest  # noqa: E402
from statebackend.testing.uploaders import UploaderConformance  # noqa: E402
from statebackend.testing.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual  # noqa: E402

__all__ = [
    "CrashStore",
    "CrashedError",
    "Fail",
    "Fault",
    "FaultyStore",
    "FaultyUploader",
    "Hold",
    "Moment",
    "ObjectStoreConformance",
    "Operation",
    "Slow",
    "Throttle",
    "Torn",
    "UploaderConformance",
    "UploaderUnderTest",
    "VirtualClock",
    "VirtualTimeLoop",
    "run_virtual",
]
