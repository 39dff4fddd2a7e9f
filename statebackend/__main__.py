"""`python -m statebackend`: see `cli.py`."""

import sys

from statebackend.cli import main

if __name__ == "__main__":
    sys.exit(main())
