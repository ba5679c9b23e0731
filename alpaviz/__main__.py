"""`python -m alpaviz` is the command line."""

import sys

from alpaviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
