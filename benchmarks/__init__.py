"""Measurements, and the pages that show them: README.md says which command answers what."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

# The tests' reference judges results here as well: a kernel is timed by the rule it is tested by.
sys.path.append(str(ROOT / "tests"))
