"""Tools to test an extension of your own, and to make things fail on command.

ObjectStoreConformance, UploaderConformance, MirrorTargetConformance
                                                subclass one, say what to test, run pytest; override no test
FaultyStore, FaultyUploader                     wrappers that apply a plan of faults: Fail, Hold, Slow, Throttle, Torn
CrashStore                                      objects that outlive the process that writes them, and its crashes
ProcessorTester                                 a processor on rows, without Spark, files and threads
compare                                         a processor beside a plain model, on drawn rows, through kills
run_virtual, VirtualClock, VirtualTimeLoop      virtual time, so that a test about delays takes no time

This is the only room that imports pytest, and nothing else in the library imports this room.
"""

import importlib
from typing import TYPE_CHECKING, Any

from statebackend.errors import needs_extra

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs_extra("statebackend.testing", "testing"), name=error.name) from error

pytest.register_assert_rewrite(f"{__name__}.kits")

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
from statebackend.testing.kits.object_stores import ObjectStoreConformance  # noqa: E402
from statebackend.testing.kits.uploader_under_test import UploaderUnderTest  # noqa: E402
from statebackend.testing.kits.uploaders import UploaderConformance  # noqa: E402
from statebackend.testing.virtual_time import VirtualClock, VirtualTimeLoop, run_virtual  # noqa: E402

if TYPE_CHECKING:
    from statebackend.testing.against_a_model import compare
    from statebackend.testing.kits.mirror_targets import MirrorTargetConformance
    from statebackend.testing.processor_tester import ProcessorTester

__all__ = [
    "CrashStore",
    "CrashedError",
    "Fail",
    "Fault",
    "FaultyStore",
    "FaultyUploader",
    "Hold",
    "MirrorTargetConformance",
    "Moment",
    "ObjectStoreConformance",
    "Operation",
    "ProcessorTester",
    "Slow",
    "Throttle",
    "Torn",
    "UploaderConformance",
    "UploaderUnderTest",
    "VirtualClock",
    "VirtualTimeLoop",
    "compare",
    "run_virtual",
]


_WITH_ARROW = {
    "MirrorTargetConformance": "kits.mirror_targets",
    "ProcessorTester": "processor_tester",
    "compare": "against_a_model",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_ARROW:  # on first use: it imports pyarrow, which not every process has
        return getattr(importlib.import_module(f"statebackend.testing.{_WITH_ARROW[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
