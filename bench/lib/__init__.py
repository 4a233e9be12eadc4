"""What benchmarks share."""

import pathlib
import sys

# The list of protocols is shared with the tests.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import protocols  # noqa: E402, F401
