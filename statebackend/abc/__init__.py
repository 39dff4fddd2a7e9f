"""The extension points: the protocols you may implement, the promises the library makes to each, and their records.

`ObjectStore` holds bytes at keys, `StateChangeUploader` makes a segment durable, `Serializer` turns values into
bytes, `Observer` watches, `Clock` tells the time. Each docstring says when a method is called, how often, what it
may raise, and what a cancelled call may leave behind. All methods run on one event loop unless said otherwise.
"""

from statebackend.abc.clock import Clock
from statebackend.abc.observer import CheckpointInfo, Fallback, Observer, RestoreReport
from statebackend.abc.serializer import Serializer
from statebackend.abc.store import (
    Body,
    Buffer,
    Capability,
    CopiesObjects,
    CountsRequests,
    DeletesMany,
    ObjectInfo,
    ObjectStore,
    OpensApart,
)
from statebackend.abc.uploader import Segment, StateChangeUploader, UploadedSegment
from statebackend.ids import ChangeSetHandle, Handle

__all__ = [
    "Body",
    "Buffer",
    "Capability",
    "ChangeSetHandle",
    "CheckpointInfo",
    "Clock",
    "CopiesObjects",
    "CountsRequests",
    "DeletesMany",
    "Fallback",
    "Handle",
    "ObjectInfo",
    "ObjectStore",
    "Observer",
    "OpensApart",
    "RestoreReport",
    "Segment",
    "Serializer",
    "StateChangeUploader",
    "UploadedSegment",
]
