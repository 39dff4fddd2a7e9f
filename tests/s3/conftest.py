"""One MiniStack for all tests that want one, and a bucket for each who asks."""

import itertools
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session

from benchmarks.servers import MINISTACK_PYTHON, run_ministack
from statebackend import Settings
