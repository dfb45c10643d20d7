"""The suites of products that the benchmark measures, by name."""

from benchmarks.suites import complex as suites_complex
from benchmarks.suites import float64 as suites_float64
from benchmarks.suites.headline import HEADLINE, HOST
from benchmarks.suites.shapes import LAYOUTS, Shape, Suite

LADDER_SIZES = (256, 512, 1024, 2048, 4096)  # the squares at which kernels are compared


def _square() -> tuple[Shape, ...]:
    small = tuple(Shape(size, size, size) for size in (128, 256, 512, 1024, 2048))
    return (
        *small,
        Shape(4096, 4096, 4096, every_kernel=True, energy=True),
        *(Shape(4096, 4096, 4096, layout=layout) for layout in LAYOUTS[1:]),
        Shape(8192, 8192, 8192, energy=True),
        Shape(16384, 16384, 16384, energy=True),
    )


def _ragged() -> tuple[Shape, ...]:
    return (
        Shape(127, 129, 131),
        Shape(255, 257, 253),
        Shape(1000, 1000, 1000),
        Shape(1023, 1025, 1027),
        Shape(3001, 5003, 1009),
        *(
            Shape(*sizes, group="all above 1500")
            for sizes in (
                (2047, 2049, 2053),
                (1999, 3001, 5003),
                (4095, 4097, 4093),
                (4097, 4097, 4097),
                (6007, 2503, 3989),
            )
        ),
    )


# Odd numbers, most of them primes. In some, a side or K is much smaller than the others.
ODD_SIZES = (
    *((307, 311, 313), (401, 409, 419), (503, 509, 521), (601, 607, 613), (757, 761, 769)),
    *((997, 1009, 1013), (1201, 1213, 1217), (1499, 1511, 1523), (1777, 1783, 1787)),
    *((2003, 2011, 2017), (2503, 2521, 2531), (3001, 3011, 3019), (3499, 3511, 3517)),
    *((4001, 4003, 4007), (4507, 4513, 4517), (4987, 4993, 4999)),
    *((331, 4999, 1013), (4801, 347, 2011), (2999, 3001, 349), (509, 487, 4999)),
    *((1021, 4093, 2039), (4093, 1021, 2039), (2039, 4093, 1021), (2579, 1291, 647)),
    *((647, 1291, 2579), (1733, 3469, 863), (3469, 1733, 4327), (4327, 2161, 1087)),
    *((999, 1001, 1005), (1999, 2001, 3003), (3005, 4005, 2005), (4095, 2047, 1023)),
)


def _odd_sizes() -> tuple[Shape, ...]:
    return tuple(
        Shape(*sizes, layout=LAYOUTS[i % len(LAYOUTS)], group="odd sizes")
        for i, sizes in enumerate(ODD_SIZES)
    )


# Multiples of 8, not of 64: rows of 16-bit floats are 16-byte aligned, but no whole cache lines.
EIGHTS = (
    *((520, 520, 520), (1000, 1000, 1000), (1032, 1032, 1032), (2056, 2056, 2056)),
    *((3000, 3000, 3000), (4104, 4104, 4104), (760, 776, 4104), (200, 3000, 3000)),
    *((5000, 5000, 1000), (10_000, 1000, 1000), (1000, 1000, 10_000), (2056, 1032, 4104)),
)
# The rows of the long operand are not 16-byte aligned.
FEW_ROWS = (
    *((1, 4097, 4099), (16, 4097, 4099), (64, 4097, 4099)),
    *((1, 6137, 15731), (16, 11007, 4095), (64, 6133, 14887)),
)


def _unaligned_rows() -> tuple[Shape, ...]:
    return tuple(
        Shape(*sizes, layout=layout, group=group)
        for group, many, layouts in (
            ("multiples of 8, not of 64", EIGHTS, ("NT", "TN")),
            ("few rows, odd row pitch", FEW_ROWS, ("NN", "NT")),
        )
        for sizes in many
        for layout in layouts
    )


def _ieee() -> tuple[Shape, ...]:
    return (
        *(Shape(size, size, size, group="squares to 1024") for size in (128, 256, 512, 1024)),
        *(
            Shape(size, size, size, layout=layout, group="squares from 2048")
            for size in (2048, 4096, 8192, 16384)
            for layout in LAYOUTS
        ),
        *_odd_sizes(),
    )


def _skinny() -> tuple[Shape, ...]:
    few_rows = {"m = 1": (1,), "m = 2 to 16": (2, 4, 8, 16), "m = 32 to 128": (32, 64, 128)}
    return (
        *(
            Shape(m, size, size, layout=layout, group=group)
            for group, rows in few_rows.items()
            for m in rows
            for size in (4096, 11008)
            for layout in ("NN", "NT")
        ),
        Shape(4, 768, 3072, layout="NT", group="router"),
        Shape(16, 256, 7168, layout="NT", group="router"),
        Shape(64, 256, 6144, layout="NT", group="router"),
        *(
            Shape(*sizes, group="long K or few columns")
            for sizes in (
                (64, 64, 65536),
                (128, 128, 131072),
                (32, 32, 1_000_000),
                (8192, 32, 8192),
            )
        ),
        Shape(4096, 4096, 64, what="short sum"),
    )


def _layer(what: str, tokens: int, fan_in: int, fan_out: int, weight: str) -> tuple[Shape, ...]:
    """The three products of a linear layer: one of its forward pass, two of its backward pass.

    `weight` is "T" where the weight is stored (fan_out, fan_in), as torch.nn.Linear does, and "N"
    where it is stored (fan_in, fan_out). The last product has the shape of the stored weight.
    """
    other = "N" if weight == "T" else "T"
    rows, columns = (fan_out, fan_in) if weight == "T" else (fan_in, fan_out)
    return (
        Shape(tokens, fan_out, fan_in, layout="N" + weight, what=f"{what}, forward"),
        Shape(tokens, fan_in, fan_out, layout="N" + other, what=f"{what}, input's gradient"),
        Shape(rows, columns, tokens, layout="TN", what=f"{what}, weight's gradient"),
    )


def _transformer() -> tuple[Shape, ...]:
    layers = (
        ("Llama-3-8B query, output", 2048, 4096, 4096, "T"),
        ("Llama-3-8B key, value", 2048, 4096, 1024, "T"),
        ("Llama-3-8B gate, up", 2048, 4096, 14336, "T"),
        ("Llama-3-8B down", 2048, 14336, 4096, "T"),
        ("Llama-3-8B logits", 2048, 4096, 128256, "T"),
        ("GPT-2 query, key, value", 1024, 768, 2304, "N"),
        ("GPT-2 output", 1024, 768, 768, "N"),
        ("GPT-2 up", 1024, 768, 3072, "N"),
        ("GPT-2 down", 1024, 3072, 768, "N"),
        ("GPT-2 logits", 1024, 768, 50257, "T"),
        ("BERT query, key, value, output", 4096, 768, 768, "T"),
        ("BERT up", 4096, 768, 3072, "T"),
        ("BERT down", 4096, 3072, 768, "T"),
    )
    return tuple(shape for layer in layers for shape in _layer(*layer))


def _batched() -> tuple[Shape, ...]:
    return (
        *(Shape(size, size, size, batch=10_000, group="cubes") for size in (8, 16, 32, 64)),
        Shape(128, 128, 64, batch=384, layout="NT", what="BERT attention scores"),
        Shape(128, 64, 128, batch=384, what="BERT attention values"),
        Shape(2048, 2048, 128, batch=32, layout="NT", what="Llama-3-8B attention scores"),
        Shape(2048, 128, 2048, batch=32, what="Llama-3-8B attention values"),
    )


def _mma_square() -> tuple[Shape, ...]:
    groups = {"512 and 1024": (512, 1024), "from 2048": (2048, 4096, 8192, 16384)}
    hot = ((8192, "NT"), (16384, "NT"))
    return tuple(
        Shape(size, size, size, layout=layout, group=group, energy=(size, layout) in hot)
        for group, sizes in groups.items()
        for size in sizes
        for layout in LAYOUTS
    )


def _mma_long_k() -> tuple[Shape, ...]:
    gradients = ((768, 768), (768, 3072), (1024, 1024), (512, 512), (256, 1024))
    few_rows = ((1, 16384, 53248), (16, 8192, 28672), (64, 8192, 28672))
    return (
        *(
            Shape(m, n, k, layout="TN", group="gradients of weights, by tokens")
            for k in (16384, 32768, 65536)
            for m, n in gradients
        ),
        *(Shape(m, n, k, layout="NT", group="few rows") for m, n, k in few_rows),
        Shape(64, 64, 1_000_000, layout="NT", group="little but K"),
    )


def _tf32_square() -> tuple[Shape, ...]:
    return (
        *(Shape(size, size, size, group="1024 and 2048") for size in (1024, 2048)),
        *(
            Shape(size, size, size, layout=layout, group="from 4096")
            for size in (4096, 8192)
            for layout in LAYOUTS
        ),
        Shape(16384, 16384, 16384, group="from 4096"),
        Shape(4095, 4097, 4093, group="odd sizes"),
    )


def _decode() -> tuple[Shape, ...]:
    groups = {"m = 1 to 16": (1, 4, 16), "m = 32": (32,), "m = 64": (64,)}
    return tuple(
        Shape(m, n, k, layout="NT", group=group)
        for group, rows in groups.items()
        for m in rows
        for n in (4096, 11008, 14336)
        for k in (4096, 11008, 14336)
    )


def _prepared() -> tuple[Shape, ...]:
    return (
        Shape(16, 4096, 4096, layout="NT"),
        Shape(128, 4096, 4096, layout="NT"),
        Shape(4096, 4096, 4096, layout="NT"),
        Shape(4096, 11008, 4096, layout="NT"),
        Shape(8192, 8192, 65536, layout="NT"),
    )


def _padded() -> tuple[Shape, ...]:
    sizes = ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 768, 3072))
    return tuple(Shape(*each, layout="NT") for each in sizes)


def _epilogue() -> tuple[Shape, ...]:
    return tuple(Shape(m, 4096, 4096, layout="NT") for m in (16, 128, 4096))


def _ladder() -> tuple[Shape, ...]:
    return tuple(Shape(size, size, size, every_kernel=True) for size in LADDER_SIZES[:-1])


def _kernels() -> tuple[Shape, ...]:
    return (
        Shape(512, 512, 512, kernels=("naive", "tiled16", "tiled32", "fp16x3_small")),
        Shape(2048, 2048, 2048, kernels=("tiled64", "simt_tma", "fp16x3_wgmma")),
        Shape(1021, 1031, 1033, kernels=("simt_cp_async",)),
        Shape(32, 32, 32, batch=10_000, kernels=("simt_small",)),
        Shape(55, 587, 176, batch=96, layout="NT", kernels=("fp16x3_direct", "fp16x3_small")),
        Shape(1, 1181, 349, batch=32, kernels=("fp16x3_thin", "fp16x3_direct")),
        Shape(8, 4096, 4096, layout="NT", kernels=("simt_skinny", "fp16x3_skinny")),
        Shape(128, 4096, 4096, layout="NT", kernels=("fp16x3_fused",)),
        Shape(4, 768, 3072, layout="NT", kernels=("fp16x3_cluster",)),
        Shape(16, 256, 7168, layout="NT", kernels=("fp16x3_cluster",)),
        Shape(24, 801, 1063, layout="TN", kernels=("fp16x3_cluster", "fp16x3_skinny")),
        Shape(5, 20001, 40, layout="NT", kernels=("simt_skinny", "simt_cp_async")),
        Shape(4146, 8, 8, batch=384, layout="NT", kernels=("simt_gemv", "simt_small")),
        Shape(8, 12, 3008, layout="TT", kernels=("simt_cluster", "simt_skinny")),
    )


def _mma_kernels() -> tuple[Shape, ...]:
    squares = ("mma_sync", "mma_tma")
    unaligned = ("mma_sync", "mma_unaligned", "mma_tma")
    return (
        *(Shape(size, size, size, kernels=squares) for size in LADDER_SIZES),
        Shape(30, 50, 40, kernels=("mma_direct", "mma_tma")),
        Shape(48784, 6, 11, batch=96, layout="TT", kernels=("mma_direct", "mma_tma")),
        Shape(64, 4097, 4099, kernels=unaligned),
        Shape(175, 2593, 11453, layout="NT", kernels=unaligned),
    )


def _tf32_kernels() -> tuple[Shape, ...]:
    return tuple(Shape(size, size, size, kernels=("tf32_tma",)) for size in LADDER_SIZES)


def _smoke() -> tuple[Shape, ...]:
    return (
        Shape(64, 64, 64),
        Shape(256, 256, 256),
        Shape(256, 256, 256, layout="NT"),
        Shape(256, 256, 256, layout="TN"),
        Shape(127, 129, 131, layout="TT"),
        Shape(1, 1024, 1024, layout="NT"),
        Shape(32, 32, 4096),
        Shape(24, 24, 24, batch=64),
        Shape(512, 512, 512),
    )


SUITES = {
    "headline": HEADLINE,
    "host": HOST,
    "smoke": Suite("every kernel on small problems: minutes at most on two CPU cores", _smoke()),
    "square": Suite("squares from 128 to 16384; at 4096 every kernel and every layout", _square()),
    "ladder": Suite("every float32 kernel, on squares below 4096", _ladder()),
    "ieee": Suite(
        "squares and odd sizes in precision ieee; from 2048 on, squares in every layout",
        _ieee(),
        precisions=("ieee",),
    ),
    "ragged": Suite("odd sizes, which no tile divides", _ragged()),
    "skinny": Suite(
        "few rows or columns, and long or short K",
        _skinny(),
        precisions=("fp32", "ieee"),
        copy=True,
    ),
    "transformer": Suite(
        "the layers of Llama-3-8B, GPT-2 and BERT, forward and backward", _transformer()
    ),
    "batched": Suite(
        "batches of small cubes, and the products of attention",
        _batched(),
        precisions=("fp32", "ieee"),
        copy=True,
    ),
    "prepared": Suite("a prepared b, beside the plain product", _prepared(), ("plain", "prepared")),
    "guard": Suite(
        "other data at 4096: uniform; with an infinite row; such that fp16x3 flags every element",
        (Shape(4096, 4096, 4096),),
        ("plain", "uniform", "bad row", "flagged"),
        precisions=("fp32", "ieee"),
    ),
    "opposed": Suite(
        "a's columns and b's rows scaled against each other by exp(2 N(0, 1)), beside unscaled",
        (Shape(1024, 1024, 4096), Shape(4096, 4096, 4096)),
        ("plain", "opposed"),
    ),
    "padded": Suite(
        "weights of which 1 % have decayed to 1e-8; the same where half of a's rows are zero",
        _padded(),
        ("decayed", "padded"),
    ),
    "epilogue": Suite(
        "a linear layer with bias and activation, beside its plain product",
        _epilogue(),
        ("plain", "bias", "relu", "gelu"),
        precisions=("fp32", "ieee"),
    ),
    "mma_square": Suite(
        "squares from 512 to 16384 in every layout",
        _mma_square(),
        dtypes=("bfloat16", "float16"),
    ),
    "mma_ragged": Suite(
        "the odd sizes of the suites ragged and ieee",
        (*_ragged(), *_odd_sizes()),
        dtypes=("bfloat16",),
    ),
    "mma_unaligned_rows": Suite(
        "rows aligned to 16 bytes but not to cache lines, and few rows of odd row pitch",
        _unaligned_rows(),
        dtypes=("bfloat16",),
    ),
    "mma_decode": Suite(
        "few rows times the weights of large layers", _decode(), dtypes=("bfloat16",), copy=True
    ),
    "mma_long_k": Suite(
        "K of several chunks in the mma order", _mma_long_k(), dtypes=("bfloat16",)
    ),
    "mma_transformer": Suite(
        "the layers of the suite transformer", _transformer(), dtypes=("bfloat16",)
    ),
    "mma_epilogue": Suite(
        "a linear layer with bias and activation, beside its plain product",
        _epilogue(),
        ("plain", "bias", "relu", "gelu"),
        dtypes=("bfloat16",),
    ),
    "tf32_square": Suite(
        "squares from 1024 to 16384 and one odd size, in precision tf32 on both sides",
        _tf32_square(),
        precisions=("tf32",),
    ),
    **suites_float64.suites(_ragged(), LADDER_SIZES),
    **suites_complex.suites(shape for shape in _ragged() if shape.group),
    "kernels": Suite("every float32 kernel by name, on shapes that it is made for", _kernels()),
    "mma_kernels": Suite(
        "every kernel for 16-bit floats by name, on squares and on shapes that it is made for",
        _mma_kernels(),
        dtypes=("bfloat16",),
    ),
    "tf32_kernels": Suite(
        "every kernel of precision tf32 by name, on squares", _tf32_kernels(), precisions=("tf32",)
    ),
    "fp16_peer": Suite(
        "three float16 products by fp16x3, beside one by cuBLAS",
        tuple(Shape(size, size, size, layout="NT") for size in (4096, 8192)),
        ("fp16 peer",),
    ),
}
