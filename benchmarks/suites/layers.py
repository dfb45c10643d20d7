"""Times what layers ask for beside PyTorch: mixed operands, pointwise, groups, attention, decode.

    python -m benchmarks.suites.layers --json benchmarks/results/layers.json
    python -m benchmarks.suites.layers --small --device cpu

The suite `mixed` multiplies bfloat16 by float32, where PyTorch upcasts and multiplies in IEEE
float32; its heads compute float32 logits of bfloat16 activations, beside PyTorch's bfloat16
product, and their gradients from float32 ones, beside TF32 of operands that are float32. The suite
`pointwise` calls torch.nn.functional.conv2d with a kernel of 1, under torch_tiled.override() and
without, where cuDNN runs its fastest algorithm without TF32. The suite `grouped` has groups of
equal sizes and of sizes by Zipf's law; its peer is torch.nn.functional.grouped_mm in bfloat16, and
torch.mm for each group in float32, where grouped_mm reads offs on the host. The suite `attention`
is float32 beside PyTorch's memory-efficient kernel, the fastest of its own, forward and in
training steps, of which the error is that of the gradient of q, and bfloat16 beside its flash
attention. The suite `decode` has one query of each head, beside PyTorch's fastest kernel and beside
a copy of the keys and values. Functions are timed as benchmarks.gemm times products, and errors are
relative Frobenius against float64.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_tiled
from benchmarks.command import DTYPES, Parser, Session, exit_with
from benchmarks.gemm import machine
from benchmarks.gemm.check import full_precision_peer
from benchmarks.gemm.measure import Operands, Product, count_sets, side_by_side
from benchmarks.pages import files
from benchmarks.suites.shapes import LAYOUTS, Shape

SECONDS = 0.3  # for a row
GROUPS = ((64, 1024, 256, 256), (64, 1024, 128, 128), (256, 64, 128, 128), (8, 4096, 1024, 1024))
ROUTERS = tuple((m, 256, k) for m in (1, 16, 64) for k in (7168, 6144))
HEADS = (  # batch, heads, length and columns
    (64, 12, 64, 64),
    (16, 12, 128, 64),
    (16, 12, 256, 64),
    (16, 16, 512, 64),
    (8, 12, 1024, 64),
    (8, 16, 1024, 64),
    (4, 16, 4096, 64),
    (16, 8, 256, 128),
    (2, 16, 4096, 128),
)
ONE_QUERY = (  # batch, heads, heads of keys, keys and columns
    (1, 12, 12, 4096, 64),
    (32, 16, 16, 4096, 64),
    (1, 32, 8, 4096, 128),
    (4, 32, 8, 4096, 128),
    (32, 32, 8, 4096, 128),
    (1, 32, 8, 32_768, 128),
    (8, 32, 32, 4096, 128),
)
SLAB = 2**26  # elements of a float64 result that are checked


@dataclass(frozen=True)
class Contest:
    suite: str
    what: str
    ours: Product
    peer: Product
    sets: list[Operands]
    flops: int
    exact: Product  # in float64


def operands(make: Callable[[], Operands], device: torch.device) -> list[Operands]:
    first = make()
    count = count_sets(sum(x.nbytes for x in first), device)
    return [first, *(make() for _ in range(count - 1))]


# --- mixed ---------------------------------------------------------------------------------------


def by_upcast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()


def exactly(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def mixed_pair(shape: Shape, device: torch.device) -> Operands:
    a, b = shape.stored(partial(torch.randn, device=device))
    return a.bfloat16(), b


def by_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with full_precision_peer("tf32"):
        return a @ b


def gradient_operands(shape: Shape, device: torch.device) -> Operands:
    """A float32 gradient, a bfloat16 operand, and that operand in float32."""
    dy, x = shape.stored(partial(torch.randn, device=device))
    return dy, x.bfloat16(), x.bfloat16().float()


def mixed(device: torch.device, small: bool) -> Iterator[Contest]:
    def contest(what: str, shape: Shape) -> Contest:
        sets = operands(partial(mixed_pair, shape, device), device)
        return Contest("mixed", what, torch_tiled.matmul, by_upcast, sets, shape.flops, exactly)

    for size in (64,) if small else (4096, 8192):
        for layout in LAYOUTS:
            yield contest(f"{size} cubed {layout}", Shape(size, size, size, layout=layout))
    for m, n, k in () if small else ROUTERS:
        yield contest(f"router {m} x {n} x {k}", Shape(m, n, k, layout="NT"))
    tokens, words, width = (16, 64, 32) if small else (8192, 151_936, 4096)
    head = Shape(tokens, words, width, layout="NT")
    normal = partial(torch.randn, device=device, dtype=torch.bfloat16)
    yield Contest(
        "mixed",
        f"float32 logits, {tokens} x {words} x {width}",
        partial(torch_tiled.matmul, out_dtype=torch.float32),
        torch.matmul,
        operands(partial(head.stored, normal), device),
        head.flops,
        exactly,
    )
    gradients = {"dX": Shape(tokens, width, words), "dW": Shape(words, width, tokens, layout="TN")}
    for name, shape in gradients.items():
        yield Contest(
            "mixed",
            f"{name} of these logits, beside TF32",
            lambda dy, x, _: torch_tiled.matmul(dy, x),
            lambda dy, _, upcast: by_tf32(dy, upcast),
            operands(partial(gradient_operands, shape, device), device),
            shape.flops,
            lambda dy, x, _: exactly(dy, x),
        )


# --- pointwise -----------------------------------------------------------------------------------


def by_override(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch_tiled.override():
        return F.conv2d(x, weight)


def exactly_pointwise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.double(), weight.double())


def images_and_weight(
    count: int, channels: int, side: int, layout: torch.memory_format, device: torch.device
) -> Operands:
    x = torch.randn(count, channels, side, side, device=device).to(memory_format=layout)
    return x, torch.randn(channels, channels, 1, 1, device=device)


def pointwise(device: torch.device, small: bool) -> Iterator[Contest]:
    formats = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
    images, channels, sides = (2, (8,), (5,)) if small else (32, (64, 128, 256, 512), (28, 56))
    for c, side, (name, layout) in itertools.product(channels, sides, formats.items()):
        yield Contest(
            "pointwise",
            f"{images} x {c} x {side} x {side}, {name}",
            by_override,
            F.conv2d,
            operands(partial(images_and_weight, images, c, side, layout, device), device),
            2 * images * side**2 * c**2,
            exactly_pointwise,
        )


# --- grouped -------------------------------------------------------------------------------------


def ends(groups: int, rows: int, law: str, device: torch.device) -> torch.Tensor:
    """Where groups of these rows together end: of equal sizes, or the g-th of size 1 / g."""
    share = 1 / torch.arange(1, groups + 1, dtype=torch.float64)
    if law == "equal":
        share = torch.ones(groups, dtype=torch.float64)
    return (share.cumsum(0) / share.sum() * rows).round().to(torch.int32).to(device)


def for_each_group(bounds: list[int], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = a.new_empty(a.shape[0], b.shape[-1])
    for group, (begin, end) in enumerate(itertools.pairwise([0, *bounds])):
        torch.mm(a[begin:end], b[group], out=c[begin:end])
    return c


def exactly_grouped(bounds: list[int], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return for_each_group(bounds, a.double(), b.double())


def rows_and_weights(
    rows: int, groups: int, n: int, k: int, layout: str, normal: Callable[..., torch.Tensor]
) -> Operands:
    weights = normal(groups, k, n) if layout == "NN" else normal(groups, n, k).mT
    return normal(rows, k), weights


def by_torch(dtype: str, offs: torch.Tensor, bounds: list[int]) -> Product:
    if dtype == "float32":
        return partial(for_each_group, bounds)
    return partial(F.grouped_mm, offs=offs)


def grouped(device: torch.device, small: bool) -> Iterator[Contest]:
    cases = itertools.product(
        ((4, 16, 24, 32),) if small else GROUPS,
        ("float32", "bfloat16"),
        ("equal", "Zipf"),
        ("NN", "NT"),
    )
    for (groups, m, n, k), dtype, law, layout in cases:
        rows = groups * m
        offs = ends(groups, rows, law, device)
        bounds = offs.tolist()

        normal = partial(torch.randn, device=device, dtype=DTYPES[dtype])
        yield Contest(
            "grouped",
            f"{groups} of ({m}, {n}, {k}), {dtype}, {law}, {layout}",
            partial(torch_tiled.grouped_mm, offs=offs),
            by_torch(dtype, offs, bounds),
            operands(partial(rows_and_weights, rows, groups, n, k, layout, normal), device),
            2 * rows * n * k,
            partial(exactly_grouped, bounds),
        )


# --- attention -----------------------------------------------------------------------------------


def scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    algorithm = "fp16x3" if q.dtype == torch.float32 else "mma"
    return torch_tiled.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=True, algorithm=algorithm
    )


def by_torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """PyTorch's fastest kernel, or its products and softmax for what that does not take."""
    is_16bit = q.dtype in (torch.bfloat16, torch.float16)
    fastest = SDPBackend.FLASH_ATTENTION if is_16bit else SDPBackend.EFFICIENT_ATTENTION
    with sdpa_kernel(SDPBackend.MATH if q.is_cpu else [fastest, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )


def in_double(function: Product) -> Product:
    """The function of float64 copies, a sequence of a batch at a time."""

    def exactly(*tensors: torch.Tensor) -> torch.Tensor:
        sequences = zip(*(x.split(1) for x in tensors), strict=True)
        return torch.cat([function(*(x.double() for x in each)) for each in sequences])

    return exactly


def name_of_16bit(dtype: torch.dtype) -> str:
    return "" if dtype == torch.float32 else f", {str(dtype).removeprefix('torch.')}"


def step(
    function: Product, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(function(*inputs), inputs, grad)[0]


def several(normal: Callable[[], torch.Tensor], count: int) -> Operands:
    return tuple(normal() for _ in range(count))


def attention(device: torch.device, small: bool) -> Iterator[Contest]:
    shapes = ((2, 3, 40, 16),) if small else HEADS
    dtypes = torch.float32, torch.bfloat16
    cases = itertools.product(dtypes, shapes, ("forward", "step"), (False, True))
    for dtype, (batch, heads, length, columns), what, causal in cases:
        functions = [partial(f, causal=causal) for f in (scores, by_torch_attention)]
        flops = 4 * batch * heads * length**2 * columns // (2 if causal else 1)
        count = 3
        if what == "step":
            functions = [partial(step, f) for f in functions]
            flops, count = flops * 7 // 2, 4
        ours, peer = functions
        normal = partial(torch.randn, batch, heads, length, columns, device=device, dtype=dtype)
        what += (", causal" if causal else "") + name_of_16bit(dtype)
        yield Contest(
            "attention",
            f"{batch} x {heads} x {length} x {columns}, {what}",
            ours,
            peer,
            operands(partial(several, normal, count), device),
            flops,
            in_double(peer),
        )


# --- decode --------------------------------------------------------------------------------------


def drawn(
    *shapes: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> Operands:
    return tuple(torch.randn(shape, device=device, dtype=dtype) for shape in shapes)


def copy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k.clone()
    return v.clone()


def decode(device: torch.device, small: bool) -> Iterator[Contest]:
    shapes = ((2, 4, 2, 70, 16),) if small else ONE_QUERY
    for dtype, shape in itertools.product((torch.float32, torch.bfloat16), shapes):
        batch, heads, kv_heads, keys, columns = shape
        of_k = (batch, kv_heads, keys, columns)
        sets = operands(
            partial(drawn, (batch, heads, 1, columns), of_k, of_k, device=device, dtype=dtype),
            device,
        )
        what = f"{batch} x {heads} heads, {kv_heads} of {keys} x {columns}{name_of_16bit(dtype)}"
        flops = 4 * batch * heads * keys * columns
        for name, peer in (("PyTorch", by_torch_attention), ("a copy of k and v", copy)):
            beside = f"{what}, beside {name}"
            ours = partial(scores, causal=False)
            exactly = in_double(by_torch_attention)
            yield Contest("decode", beside, ours, peer, sets, flops, exactly)


# --- the command ---------------------------------------------------------------------------------


def error(c: torch.Tensor, exact: torch.Tensor) -> float:
    return ((c.double() - exact).norm() / exact.norm()).item()


def measured(contest: Contest) -> dict:
    first = contest.sets[0]
    ours, peer = side_by_side(
        [(contest.ours, contest.sets), (contest.peer, contest.sets)], seconds=SECONDS, repeats=3
    )
    row = {"suite": contest.suite, "what": contest.what, "us": ours.median, "p10": ours.p10}
    row |= {"p90": ours.p90, "peer_us": peer.median, "ratio": peer.median / ours.median}
    row["tflops"] = contest.flops / ours.median / 1e6
    c = contest.ours(*first)
    if c.numel() <= SLAB:
        exact = contest.exact(*first)
        row["error"] = error(c, exact)
        if contest.peer is not copy:
            row["peer_error"] = error(contest.peer(*first), exact)
    return row


SUITES = {
    "mixed": mixed,
    "pointwise": pointwise,
    "grouped": grouped,
    "attention": attention,
    "decode": decode,
}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("benchmarks.suites.layers", __doc__)
    parser.add_argument("--suite", choices=SUITES, nargs="+", default=list(SUITES))
    parser.add_argument("--small", action="store_true", help="small shapes alone")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    device = torch.device(args.device)
    results = {"header": machine.describe(args), "rows": []}
    write = partial(files.write, args.json, results)
    with full_precision_peer("fp32"), Session(args, results["header"], write) as session:
        for suite in args.suite:
            for contest in SUITES[suite](device, args.small):
                row = measured(contest)
                results["rows"].append(row)
                errors = (f"{row[x]:.1e}" for x in ("error", "peer_error") if x in row)
                print(
                    f"{suite:8} {row['what']:44} {row['us']:8.1f} us {row['tflops']:6.1f} TFLOP/s,"
                    f" peer {row['peer_us']:8.1f} us, ratio {row['ratio']:5.2f}, errors",
                    *errors,
                    flush=True,
                )
    return session.status(failed=False)


if __name__ == "__main__":
    exit_with(main)
