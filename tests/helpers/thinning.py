"""Fewer cases than the whole cross product of a test's parameters, unless pytest is called with
--all (`make test ARGS=--all`).

@pairwise     Any two values of two parameters meet in at least one case. It is for tests of three
              or more parameters, of which a fault depends on at most two.
@each_value   Every value of every parameter is in at least one case. It is for parameters that do
              not depend on each other.
thinned()     The same within a test, for a loop over tuples.
fewer()       A number of repeats, examples or seeds.

The cases that stay are the same in each run, and the CPU's are chosen apart from CUDA's. A case
that is named on the command line, as test_x[a-b], runs in any case.
"""

import itertools
from collections import defaultdict

import pytest

pairwise = pytest.mark.thinned(strength=2)
each_value = pytest.mark.thinned(strength=1)

_whole = False


def use_whole_products(whole):
    """Called once by conftest.py, before test files are imported."""
    global _whole
    _whole = whole


def whole():
    """True if --all was given."""
    return _whole


def fewer(all_of_them, by_default):
    """A number that --all raises."""
    return all_of_them if _whole else by_default


def thinned(cases, strength=2):
    """The tuples of `cases` that are enough for any `strength` values of different positions to
    meet as they do in all of them; or all, with --all."""
    cases = list(cases)
    return cases if _whole else [cases[i] for i in covering(cases, strength)]


def covering(cases, strength):
    """Indices of few cases with all combinations of `strength` values that occur: each time the
    case with the most new ones, and the first of several such."""
    width = len(cases[0]) if cases else 0
    places = list(itertools.combinations(range(width), min(strength, width)))
    left = [{(place, tuple(case[i] for i in place)) for place in places} for case in cases]
    missing = set().union(*left)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: len(left[i]))
        chosen.append(best)
        missing -= (new := left[best].copy())
        for each in left:
            each -= new
    return sorted(chosen)


def thin_out(items):
    """The items without those that a test's marker makes superfluous."""
    if _whole:
        return items
    groups, kept = defaultdict(list), []
    for item in items:
        marker = item.get_closest_marker("thinned")
        if marker is None or not hasattr(item, "callspec"):
            kept.append(item)
            continue
        device = item.callspec.params.get("device")
        group = (item.nodeid.partition("[")[0], device, marker.kwargs["strength"])
        groups[group].append(item)
    for (_, _, strength), group in groups.items():
        kept += [group[i] for i in covering([values(item) for item in group], strength)]
    places = {item: i for i, item in enumerate(items)}
    return sorted(kept, key=places.get)


def values(item):
    """A tuple with the identity of the value of each @parametrize of a test, and of each parameter
    of its fixtures."""
    left = dict(item.callspec.params)
    names = []
    for mark in item.iter_markers("parametrize"):
        of_mark = mark.args[0]
        names.append(of_mark.replace(" ", "").split(",") if isinstance(of_mark, str) else of_mark)
    found = [tuple(id(left.pop(name)) for name in each) for each in names]
    return (*found, *((id(left[name]),) for name in sorted(left)))
