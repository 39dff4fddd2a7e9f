"""Uploaders: to the primary alone, or to the primary and a local copy at the same time.

An uploader of your own implements `statebackend.abc.StateChangeUploader`.
"""

from statebackend.uploaders.duplicating import DuplicatingUploader
from statebackend.uploaders.primary import PrimaryUploader, segment_key

__all__ = ["DuplicatingUploader", "PrimaryUploader", "segment_key"]
