"""Plans of streamed products: what they take, move and predict, and that products go like that."""

import dataclasses
import itertools
import re

import pytest
import torch
from helpers.simulated_gpu import simulated
from helpers.streaming import check, parts_module, plan_module, plan_of, sizes_of, stream
from helpers.thinning import each_value

import torch_tiled
from torch_tiled.stream import machine
from torch_tiled.stream import order as order_module
from torch_tiled.stream.machine import Machine
from torch_tiled.stream.order import order_of
from torch_tiled.stream.problem import make_problem

GIB, MIB = 1 << 30, 1 << 20
ROWS = (
    "problem",
    "algorithm",
    "tiles",
    "steps",
    "panels",
    "passes",
    "bytes",
    "memory",
    "alone",
    "predicted",
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
SIZES = [(5000, 70000, 3000), (300, 200, 9_000_000)]


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, device="meta", dtype=dtype)


def sizes_on_h200(*sides, is_staged=False):
    """The Sizes of float32 matrices row by row, in pinned memory unless they are staged."""
    order = order_of(torch.float32, sides, "fp32", "auto", (90, 132))
    sizes = sizes_of(order, *sides)
    a, b = (dataclasses.replace(x, is_staged=is_staged) for x in (sizes.a, sizes.b))
    return dataclasses.replace(sizes, a=a, b=b)


def plan(a, b, budget, **options):
    return torch_tiled.stream.plan(a, b, max_device_bytes=budget, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@each_value
def test_a_plan_is_within_its_budget(dtype, sizes):
    m, n, k = sizes
    a, b = meta(m, k, dtype=dtype), meta(k, n, dtype=dtype)
    seconds = []
    for budget in (64 * MIB, 500 * MIB, 8 * GIB):
        found = plan(a, b, budget)
        assert found.device_bytes <= budget
        seconds.append(found.seconds)
    for less, more in zip(seconds, seconds[1:], strict=False):
        assert more <= less


def test_the_plan_of_a_large_product():
    a = meta(65536, 65536)
    found = plan(a, a, 16 * GIB)
    text = str(found)
    assert tuple(line.split()[0] for line in text.splitlines()) == ROWS
    for part in ("m = 65536, n = 65536, k = 65536", "those of b are kept", "bound by products"):
        assert part in text
    assert found.bytes_in + found.bytes_out < 130 * GIB
    assert found.bound == "products"
    assert found.passes_b == 1 and found.kept == "b" and found.is_prepared
    assert found.product_seconds <= found.seconds < 1.1 * found.product_seconds


def test_what_other_plans_print():
    cut = plan(meta(300, 9_000_000), meta(9_000_000, 200), 64 * MIB)
    assert f"K in {cut.grid.slices} slices of {cut.depth}" in str(cut)
    batch = plan(meta(5000, 100, 30), meta(5000, 30, 40), GIB)
    assert "5000 x m = 100, n = 40, k = 30" in str(batch)
    assert f"{batch.grid.rows} groups of {batch.matrices} matrices" in str(batch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [*SIZES, (7, 5, 3)], ids=str)
@each_value
def test_the_least_budget_that_the_error_names_suffices(dtype, sizes):
    m, n, k = sizes
    a, b = meta(m, k, dtype=dtype), meta(k, n, dtype=dtype)
    with pytest.raises(RuntimeError, match=r"max_device_bytes is 1000 \(0.977 KiB\)") as raised:
        plan(a, b, 1000)
    least = float(re.search(r"at least ([\d.e+]+) MiB", str(raised.value))[1])
    assert plan(a, b, int(1.005 * least * MIB) + 1).device_bytes <= 1.005 * least * MIB + 1
    with pytest.raises(RuntimeError, match="at least"):
        plan(a, b, int(0.99 * least * MIB))


def test_what_the_error_says_where_k_cannot_be_cut():
    a, b = meta(300, 9_000_000), meta(9_000_000, 200)
    with pytest.raises(RuntimeError, match=r"m = 300, n = 200, k = 9000000 \(algorithm naive does"):
        plan(a, b, GIB, algorithm="naive")


@pytest.mark.parametrize("kept", ["a", "b"])
@pytest.mark.parametrize("depth", [None, 1024, 2048])
@pytest.mark.parametrize("algorithm", ["tiled", "fp16x3"])
def test_a_simulated_gpu_takes_the_seconds_of_the_plan(algorithm, depth, kept):
    """And copies its bytes, where the sides are whole panels and chunks."""
    for grid in ((5, 3), (2, 3), (1, 4), (4, 1)):
        k = 4096 if depth else 200
        rows, cols = (grid, grid[::-1])[kept == "a"]
        a, b = torch.randn(16 * rows, k), torch.randn(k, 16 * cols)
        tiles = {"tile": (16, 16), "depth": depth, "kept": kept}
        streamed = check(a, b, **tiles, pinned=True, algorithm=algorithm)
        (found,), (queues,) = streamed.plans, streamed.queues
        assert queues.copied["in"] == found.bytes_in, grid
        assert queues.copied["out"] == found.bytes_out
        assert queues.seconds == pytest.approx(found.seconds, rel=1e-6)


def padded(x):
    """The same matrix, with gaps between its rows."""
    return torch.nn.functional.pad(x, (0, 5))[..., :-5]


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "rows with gaps": padded,
    "columns with gaps": lambda x: padded(x.mT).mT,
}


@pytest.mark.parametrize("depth", [None, 1024])
@pytest.mark.parametrize("kept", ["a", "b"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_seconds_of_lines(layout, kept, depth):
    """Rows and columns with gaps between, as panels have them, take longer to copy."""
    k = 2048 if depth else 200
    sides = (layout(torch.randn(*x)) for x in ((77, k), (k, 61), (77, 61)))
    options = {"tile": (16, 24), "depth": depth, "kept": kept, "pinned": True}
    a, b, out = sides
    streamed = stream(a, b, out=out, **options)
    (found,), (queues,) = streamed.plans, streamed.queues
    assert queues.seconds == pytest.approx(found.seconds, rel=1e-6)


def test_narrow_panels_are_slower():
    sizes, machine = sizes_on_h200(8192, 8192, 8192), simulated(GIB)[0].machine
    tiles = (8192, 1024), (1024, 8192)
    tall, wide = (plan_module.Candidate(sizes, machine, x, 8192, "b") for x in tiles)
    assert tall.moved == wide.moved
    lines = 8 * 8192 * machine.line_seconds
    for seconds, fewer in zip(tall.transfer_seconds, wide.transfer_seconds, strict=True):
        assert seconds == pytest.approx(fewer + lines)


def test_plans_of_make_plan_are_what_products_take():
    a, b = torch.randn(300, 700), torch.randn(700, 500)
    for budget in (3 * MIB, 4 * MIB, GIB):
        problem, _ = make_problem(a, b, None, "fp32", "tiled")
        settings, _ = simulated(budget)
        found = parts_module.plan_product(problem, settings)
        streamed = check(a, b, budget=budget)
        assert streamed.plans == [found]
        assert found.device_bytes <= budget


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("sides", [(1500, 1500, 1500), (6000, 300, 900), (500, 700, 9000)], ids=str)
def test_no_candidate_is_faster(sides, is_staged, workers):
    """The search leaves out only candidates that cannot be faster."""
    sizes, machine = sizes_on_h200(*sides, is_staged=is_staged), Machine()
    least = plan_module.least_budget(sizes, machine)
    for budget in (least, 2 * least, 8 * least, GIB):
        chains = plan_module._tiles(sizes, machine, budget)
        seconds = [x.seconds(workers) for x in itertools.chain.from_iterable(chains)]
        assert plan_module.make_plan(sizes, machine, budget, workers).seconds == min(seconds)


def test_groups_of_a_batch():
    a, b = meta(5000, 100, 30), meta(5000, 30, 40)
    found = plan(a, b, 64 * MIB)
    assert found.matrices > 1 and found.device_bytes <= 64 * MIB
    assert found.grid.is_paired and found.grid.rows == -(-5000 // found.matrices)
    assert found.bytes_in == 5000 * (100 * 30 + 30 * 40) * 4
    assert found.bytes_out == 5000 * 100 * 40 * 4
    shared = plan(a, b[:1].expand(5000, 30, 40), 64 * MIB)
    assert shared.bytes_in < found.bytes_in


def test_a_batch_of_large_matrices():
    one = plan(meta(20000, 20000), meta(20000, 20000), 2 * GIB)
    found = plan(meta(3, 20000, 20000), meta(3, 20000, 20000), 2 * GIB)
    assert not found.matrices and found.tile == one.tile
    assert found.bytes_in == pytest.approx(3 * one.bytes_in)
    # The first 0.1 s of all products have a higher clock, and a call has its checks once.
    machine = Machine()
    boosted = (machine.boost_seconds * (1 - 1 / machine.boost)) * 2
    assert found.product_seconds == pytest.approx(3 * one.product_seconds + boosted)
    assert 0 < found.seconds - 3 * one.seconds < boosted


def test_a_batch_of_one_b_is_one_product():
    found = plan(meta(50, 100, 3000), meta(3000, 400), GIB)
    assert found.shape == (1, 5000, 400, 3000)


def test_several_gpus_take_less_time():
    sizes = sizes_on_h200(65536, 65536, 65536)
    machine = simulated(GIB)[0].machine
    one, two, eight = (plan_module.make_plan(sizes, machine, 16 * GIB, n) for n in (1, 2, 8))
    assert eight.seconds < two.seconds < one.seconds
    assert two.workers == 2 and two.seconds == pytest.approx(one.seconds / 2, rel=0.2)


def test_several_gpus_share_the_host_that_copies_for_staging():
    staged = sizes_on_h200(16384, 16384, 16384, is_staged=True)
    machine = dataclasses.replace(simulated(GIB)[0].machine, staging_rate=1e9)
    one, two = (plan_module.make_plan(staged, machine, 4 * GIB, n) for n in (1, 2))
    assert one.bound == two.bound == "staging"
    assert "bound by staging" in str(one)
    assert f", staging {one.staging_seconds:.3g} s" in str(one)
    assert two.staging_seconds == pytest.approx(two.bytes_in / 1e9)
    assert one.seconds >= two.seconds >= two.staging_seconds


def test_staged_memory_is_slower():
    pinned = plan(meta(4000, 5000), meta(5000, 6000), GIB)
    staged = plan(torch.empty(4000, 5000), torch.empty(5000, 6000), GIB)
    assert pinned.pinned_bytes == 0 and staged.pinned_bytes > 0
    assert staged.in_seconds > pinned.in_seconds and staged.out_seconds > pinned.out_seconds
    assert pinned.staging_seconds == 0 and ", staging" not in str(pinned)


def test_fewer_threads_stage_more_slowly():
    pinned, staged = (sizes_on_h200(4096, 4096, 4096, is_staged=x) for x in (False, True))
    seconds = []
    for threads in (8, 4, 1):
        machine = dataclasses.replace(Machine(), staging_threads=threads, staged_copy_seconds=0)
        found = plan_module.make_plan(staged, machine, GIB)
        assert found.in_seconds >= found.bytes_in / (Machine().staging_in_rate * threads / 8)
        seconds.append(found.seconds)
    assert seconds == sorted(seconds)
    assert plan_module.make_plan(pinned, machine, GIB).seconds < seconds[0]


def test_each_direction_that_is_staged_has_pinned_memory():
    x, pinned = torch.empty(500, 500), meta(500, 500)
    one = Machine().staging_bytes
    for a, b, out, nbytes in [
        (x, x, x, 2 * one),
        (x, pinned, pinned, one),
        (pinned, pinned, x, one),
        (pinned, pinned, pinned, 0),
    ]:
        assert plan(a, b, GIB, out=out.clone()).pinned_bytes == nbytes


@pytest.mark.parametrize(
    "view, is_staged",
    [
        (lambda x: x[:300, :600], False),
        (lambda x: x.mT[:300, :600], False),
        (lambda x: x[::2, ::2][:300, :600], True),
        (lambda x: x[:1, :600].expand(300, 600), True),
        (lambda x: x[:300, :1].expand(300, 600), True),
    ],
)
def test_meta_tensors_are_staged_where_pinned_memory_would_be(view, is_staged):
    a, b, out = view(meta(1200, 1200)), meta(600, 300), meta(300, 300)
    assert (plan(a, b, GIB, out=out).pinned_bytes > 0) == is_staged
    assert (plan(b.mT, a.mT, GIB, out=out).pinned_bytes > 0) == is_staged


def test_a_result_with_gaps_is_staged():
    a, b = meta(300, 100), meta(100, 600)
    for out, is_staged in ((meta(600, 1200)[::2, ::2], True), (meta(300, 700)[:, :600], False)):
        assert (plan(a, b, GIB, out=out).pinned_bytes > 0) == is_staged


def test_both_directions_of_staging_share_a_rate():
    n = 3000
    nbytes, rate = 4 * n * n, Machine().staging_rate
    for devices in itertools.product(("cpu", "meta"), repeat=3):  # pageable, pinned
        a, b, c = (torch.empty(n, n, device=x) for x in devices)
        found = plan(a, b, GIB, out=c)
        passes = found.passes_a, found.passes_b, 1
        count = sum(x for x, y in zip(passes, devices, strict=True) if y == "cpu")
        seconds = count * nbytes / rate
        assert found.staging_seconds == pytest.approx(seconds)
        assert found.seconds >= found.staging_seconds
    assert found.staging_seconds == 0  # all of them pinned


EMPTY = [
    *[((0, 5), (5, 7)), ((5, 0), (0, 7)), ((5, 7), (7, 0)), ((0,), (0,)), ((3, 5, 0), (3, 0, 7))],
    *[
        ((0, 4, 5), (5, 7)),
        ((0, 4, 5), (0, 5, 7)),
        ((2, 0, 3, 4), (2, 0, 4, 5)),
        ((2, 0, 4), (4, 3)),
    ],
    ((1 << 31, 0), (0, 1 << 31)),
]


@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_empty_products(shapes):
    """Nothing is computed, so any budget will do."""
    found = plan(*(meta(*shape) for shape in shapes), 1)
    assert found.bytes_in == found.bytes_out == found.device_bytes == found.pinned_bytes == 0
    assert found.passes_a == found.passes_b == found.seconds == found.product_seconds == 0
    assert found.in_seconds == found.out_seconds == 0
    text = str(found)
    assert "0 over a, 0 over b" in text and "0 B in, 0 B out" in text and "predicted  0 s" in text


def test_empty_batches_are_told():
    assert "problem    0 x m = 3, n = 5, k = 4" in str(plan(meta(0, 3, 4), meta(0, 4, 5), 1))


def test_vectors():
    assert plan(meta(5000), meta(5000, 70), GIB).shape == (1, 1, 70, 5000)
    assert plan(meta(70, 5000), meta(5000), GIB).shape == (1, 70, 1, 5000)
    assert plan(meta(5000), meta(5000), GIB).shape == (1, 1, 1, 5000)


def test_a_plan_does_not_read_operands():
    a = torch.empty(1, 1).expand(100_000, 100_000)
    assert plan(a, a, GIB).shape == (1, 100_000, 100_000, 100_000)


def test_a_result_on_the_meta_device():
    x = meta(64, 64)
    found = torch_tiled.stream.plan(x, x, out=meta(64, 64), max_device_bytes=GIB)
    assert found.bytes_out == 4 * 64**2


@pytest.mark.parametrize("sizes", [(2**26, 8, 8), (8, 2**30, 8), (64, 64, 2**34)], ids=str)
def test_long_sides_take_no_memory(sizes):
    m, n, k = sizes
    found = plan(meta(m, k), meta(k, n), 100 * GIB)
    assert found.seconds > 0 and found.device_bytes <= 100 * GIB


def test_short_products_have_a_faster_clock():
    machine = simulated(GIB)[0].machine
    boosted = dataclasses.replace(machine, boost=1.25, boost_seconds=0.1)
    for size, gain in ((4096, 1.25), (131072, 1.001)):
        sizes = sizes_on_h200(size, size, size)
        slow, fast = (
            plan_module.Candidate(sizes, x, (size, size), size, "b") for x in (machine, boosted)
        )
        assert slow.product_seconds / fast.product_seconds == pytest.approx(gain, abs=0.001)


# --- batches, what is kept, and launches ---------------------------------------------------------


def plan_on_cpu(a, b, budget):
    return plan(a, b, budget, devices="cpu")


def test_groups_share_an_operand():
    """Its one matrix is loaded once, and has one slot."""
    a, b = torch.randn(7, 20, 30), torch.randn(7, 30, 40)
    for x, y in ((a[:1].expand_as(a), b), (a[0], b), (a.mT.contiguous().mT, b[0])):
        options = {"matrices": 2, "pinned": True}
        (queues,) = check(x, y, **options).queues
        found = plan_of(x, y, **options)
        one, many = (20 * 30, 7 * 30 * 40) if y.dim() == 3 else (30 * 40, 7 * 20 * 30)
        assert queues.copied["in"] == found.bytes_in == 4 * (one + many)
        assert found.passes_a == found.passes_b == 1


@pytest.mark.parametrize("shares", ["a", "b"])
def test_matrices_one_by_one_read_a_shared_operand_again(shares):
    a, b = torch.randn(3, 50, 40), torch.randn(3, 40, 60)
    a, b = (a[:1].expand_as(a), b) if shares == "a" else (a, b[:1].expand_as(b))
    a = a if shares == "a" else a.mT.contiguous().mT  # such a batch is no matrix of more rows
    options = {"tile": (50, 60), "pinned": True}
    copied = sum(x.copied["in"] for x in check(a, b, **options).queues)
    found = plan_of(a, b, **options)
    assert (found.repeats, found.matrices) == (3, 0)
    assert (found.passes_a, found.passes_b) == ((3, 1), (1, 3))[shares == "b"]
    assert copied == found.bytes_in == 3 * 4 * (50 * 40 + 40 * 60)


def test_batches_that_are_broadcast_against_each_other():
    """The last dimension goes in groups, for each index of the first one."""
    a, b = torch.randn(3, 1, 20, 30), torch.randn(1, 4, 30, 40)
    streamed = check(a, b, matrices=3, pinned=True)
    found = plan_of(a, b, matrices=3, pinned=True)
    assert found.shape == (12, 20, 40, 30) and found.repeats == 3
    assert found.grid.rows == 2 and found.steps == 6  # groups of 3 and of 1
    assert found.passes_a == 1 and found.passes_b == 3
    copied = sum(x.copied["in"] for x in streamed.queues)
    assert copied == found.bytes_in == 4 * (3 * 20 * 30 + 3 * 4 * 30 * 40)
    assert "3 times 2 groups of 3 matrices" in str(found)


def test_a_plan_of_several_groups_overlaps_copies_with_products():
    """One of the whole batch would be copied in, multiplied and copied out one after another."""
    a, b = meta(5000, 128, 64), meta(5000, 64, 96)
    found = plan_on_cpu(a, b, GIB)
    assert found.grid.rows > 2
    host = machine.Machine()
    seconds = found.seconds - host.start_seconds - host.call_seconds
    assert seconds < 0.8 * (found.in_seconds + found.product_seconds + found.out_seconds)


def test_a_simulated_gpu_takes_the_seconds_of_groups():
    for m, n, k, matrices in (
        *[(60, 40, 50, x) for x in (1, 2, 4, 11)],
        *[(60, 1, 50, 4), (1, 40, 50, 4), (60, 40, 1, 4), (32, 64, 96, 4), (1, 1, 64, 11)],
    ):
        a, b = torch.randn(11, m, k), torch.randn(11, k, n)
        (queues,) = check(a, b, matrices=matrices, pinned=True).queues
        found = plan_of(a, b, matrices=matrices, pinned=True)
        assert queues.seconds == pytest.approx(found.seconds, rel=1e-6)


def test_a_batch_has_no_kept_operand():
    found = plan_on_cpu(meta(50, 100, 300), meta(50, 300, 200), GIB)
    assert found.matrices and found.kept is None
    assert "those of both operands stream" in str(found)


def test_what_is_bound_by_launches():
    found = plan_on_cpu(meta(100_000, 1), meta(1, 100_000), 2 * MIB)
    assert found.bound == "launches" and "bound by launches" in str(found)
    assert found.launch_seconds == found.steps * machine.Machine().step_seconds
    assert found.seconds >= found.launch_seconds
    assert f"steps      {found.steps}\n" in str(found)


def test_no_plan_takes_less_time_than_its_launches():
    for size in (1, 300, 3000):
        found = plan_on_cpu(meta(size, size), meta(size, size), GIB)
        assert found.seconds >= found.launch_seconds


def test_launches_delay_products():
    sizes = sizes_on_h200(1000, 1000, 1000)
    fast, slow = machine.Machine(step_seconds=0), machine.Machine(step_seconds=1)
    candidates = [plan_module.Candidate(sizes, x, (300, 300), 1000, "b") for x in (fast, slow)]
    assert candidates[0].seconds(1) < 1 and 16 < candidates[1].seconds(1) < 17


@pytest.mark.parametrize("slices, kept", [(1, "b"), (2, "b"), (3, None)])
def test_no_operand_is_kept_where_both_stream(slices, kept):
    """Two slices of a panel have a slot each, and a third one has none."""
    a, b = torch.randn(40, 1024 * slices), torch.randn(1024 * slices, 40)
    options = {"tile": (20, 20), "depth": 1024, "kept": "b", "pinned": True}
    (queues,) = check(a, b, **options).queues
    found = plan_of(a, b, **options)
    assert found.kept == kept and queues.copied["in"] == found.bytes_in
    assert ("those of both operands stream" in str(found)) == (kept is None)
    assert found.passes_b == (1 if kept else 2)


def test_few_plans_of_kernels_are_asked_for():
    """A plan takes tens of milliseconds, most of them for cycles and workspaces of kernels."""
    plan_module.make_plan.cache_clear()
    order_module._cost.cache_clear()
    plan_on_cpu(meta(65536, 65536), meta(65536, 65536), 16 * GIB)
    assert order_module._cost.cache_info().misses < 1000
