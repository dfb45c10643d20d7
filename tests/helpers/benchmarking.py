"""A suite of tiny products for tests of the benchmark."""

from benchmarks.suites import suites
from benchmarks.suites.shapes import Shape, Suite

TINY = (Shape(5, 6, 7), Shape(3, 4, 5, batch=2), Shape(300, 2, 9))


def as_suite(monkeypatch, *members, **options):
    """Makes these shapes the suite "tiny"."""
    monkeypatch.setitem(suites.SUITES, "tiny", Suite("for tests", members, **options))


def tiny(device, *arguments):
    """The arguments that run the suite "tiny" on a device."""
    return ("--suite", "tiny", "--device", device, *arguments)
