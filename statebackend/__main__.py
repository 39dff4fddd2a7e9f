"""Makes `python -m statebackend` the command line of `cli/`."""

import sys

from statebackend.cli import main

if __name__ == "__main__":
    sys.exit(main())
