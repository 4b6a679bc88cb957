"""`python -m pyredisson`: the command line."""

import sys

from pyredisson.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
