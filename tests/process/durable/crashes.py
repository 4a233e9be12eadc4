#!/usr/bin/python3
"""The crash matrix of permanent tables (lib/matrix.py). `crashes SEED EVENT...` runs the named
events only."""

import os
import sys

from lib import matrix
from lib.common import failures


def main():
    arguments = sys.argv[1:]
    seed = arguments[0] if arguments else os.environ.get("MIXEDCC_SEED", "1")
    wanted = arguments[1:]
    matrix.run_all(seed, [case for case in matrix.CASES if not wanted or str(case[1]) in wanted])
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
