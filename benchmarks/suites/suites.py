"""The suites of products that the benchmark measures, by name."""

from dataclasses import replace

from benchmarks.suites.shapes import LAYOUTS, Shape, Suite, Way

LADDER_SIZES = (256, 512, 1024, 2048, 4096)  # the squares at which kernels are compared


def products(*sizes: tuple[int, int, int], layouts=("NN",), **fields) -> tuple[Shape, ...]:
    """A shape for each of these sizes (m, n, k) in each of the layouts, with the same fields."""
    return tuple(Shape(*each, layout=layout, **fields) for each in sizes for layout in layouts)


def squares(*sizes: int, **fields) -> tuple[Shape, ...]:
    return products(*((size, size, size) for size in sizes), **fields)


def by_name(*algorithms: str, **way: str) -> tuple[Way, ...]:
    return tuple(Way(algorithm=algorithm, **way) for algorithm in algorithms)


# --- products that several suites share ----------------------------------------------------------

FP32 = (Way(),)
EVERY_KIND = (
    *(Way(precision=precision) for precision in ("fp32", "ieee", "tf32")),
    *(Way(dtype) for dtype in ("bfloat16", "float64")),
)

LARGE_RAGGED = products(
    *((2047, 2049, 2053), (1999, 3001, 5003), (4095, 4097, 4093), (4097, 4097, 4097)),
    (6007, 2503, 3989),
    group="all above 1500",
)
RAGGED = (
    *products((127, 129, 131), (255, 257, 253), (1000, 1000, 1000), (1023, 1025, 1027)),
    *products((3001, 5003, 1009)),
    *LARGE_RAGGED,
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
ODD = tuple(
    Shape(*sizes, layout=LAYOUTS[i % len(LAYOUTS)], group="odd sizes")
    for i, sizes in enumerate(ODD_SIZES)
)
EPILOGUE = products((16, 4096, 4096), (128, 4096, 4096), (4096, 4096, 4096), layouts=["NT"])


def layer(what: str, tokens: int, fan_in: int, fan_out: int, weight: str) -> tuple[Shape, ...]:
    """The three products of a linear layer: one of its forward pass, two of its backward pass.

    `weight` is "T" if the weight is stored (fan_out, fan_in), as torch.nn.Linear does, and "N" if
    it is stored (fan_in, fan_out). The last product has the shape of the stored weight.
    """
    other = "N" if weight == "T" else "T"
    rows, columns = (fan_out, fan_in) if weight == "T" else (fan_in, fan_out)
    return (
        Shape(tokens, fan_out, fan_in, layout="N" + weight, what=f"{what}, forward"),
        Shape(tokens, fan_in, fan_out, layout="N" + other, what=f"{what}, input's gradient"),
        Shape(rows, columns, tokens, layout="TN", what=f"{what}, weight's gradient"),
    )


TRANSFORMER = (
    *layer("Llama-3-8B query, output", 2048, 4096, 4096, "T"),
    *layer("Llama-3-8B key, value", 2048, 4096, 1024, "T"),
    *layer("Llama-3-8B gate, up", 2048, 4096, 14336, "T"),
    *layer("Llama-3-8B down", 2048, 14336, 4096, "T"),
    *layer("Llama-3-8B logits", 2048, 4096, 128256, "T"),
    *layer("GPT-2 query, key, value", 1024, 768, 2304, "N"),
    *layer("GPT-2 output", 1024, 768, 768, "N"),
    *layer("GPT-2 up", 1024, 768, 3072, "N"),
    *layer("GPT-2 down", 1024, 3072, 768, "N"),
    *layer("GPT-2 logits", 1024, 768, 50257, "T"),
    *layer("BERT query, key, value, output", 4096, 768, 768, "T"),
    *layer("BERT up", 4096, 768, 3072, "T"),
    *layer("BERT down", 4096, 3072, 768, "T"),
)


def complex_products(largest: int) -> tuple[Shape, ...]:
    large = [size for size in (1024, 2048, 4096, 8192) if size <= largest]
    return (
        *squares(64, 128, 256, 512, group="squares to 512"),
        *squares(*large, layouts=LAYOUTS[:3], group="squares from 1024"),
        *(replace(shape, group="odd sizes") for shape in LARGE_RAGGED),
        *products(*((m, 4096, 4096) for m in (1, 16, 64)), layouts=["NN", "NT"], group="few rows"),
        *products(*((4096, n, 4096) for n in (1, 16, 64)), group="few columns"),
        *products((64, 64, 65536), group="long K"),
        *squares(8, 16, 32, batch=4096, group="batches"),
        *squares(512, batch=64, group="batches"),
        # A gate on one qubit or on two, times a state of 20 qubits.
        *products((2, 2**19, 2), (4, 2**18, 4), group="states of circuits"),
    )


SQUARE = (
    *squares(128, 256, 512, 1024, 2048),
    *squares(4096, every_kernel=True, energy=True),
    *squares(4096, layouts=LAYOUTS[1:]),
    *squares(8192, 16384, energy=True),
)
SKINNY = (
    *(
        Shape(m, size, size, layout=layout, group=group)
        for group, rows in {
            "m = 1": (1,),
            "m = 2 to 16": (2, 4, 8, 16),
            "m = 32 to 128": (32, 64, 128),
        }.items()
        for m in rows
        for size in (4096, 11008)
        for layout in ("NN", "NT")
    ),
    *products((4, 768, 3072), (16, 256, 7168), (64, 256, 6144), layouts=["NT"], group="router"),
    *products(
        *((64, 64, 65536), (128, 128, 131072), (32, 32, 1_000_000), (8192, 32, 8192)),
        group="long K or few columns",
    ),
    Shape(4096, 4096, 64, what="short sum"),
)
BATCHED = (
    *squares(8, 16, 32, 64, batch=10_000, group="cubes"),
    Shape(128, 128, 64, batch=384, layout="NT", what="BERT attention scores"),
    Shape(128, 64, 128, batch=384, what="BERT attention values"),
    Shape(2048, 2048, 128, batch=32, layout="NT", what="Llama-3-8B attention scores"),
    Shape(2048, 128, 2048, batch=32, what="Llama-3-8B attention values"),
)
DECODE = tuple(
    Shape(m, n, k, layout="NT", group=group)
    for m, group in (
        *((m, "m = 1 to 16") for m in (1, 4, 16)),
        *((32, "m = 32"), (64, "m = 64")),
    )
    for n in (4096, 11008, 14336)
    for k in (4096, 11008, 14336)
)
UNALIGNED_ROWS = (
    # Rows of 16-bit floats are 16-byte aligned, but they are no whole cache lines.
    *products(
        *((520, 520, 520), (1000, 1000, 1000), (1032, 1032, 1032), (2056, 2056, 2056)),
        *((3000, 3000, 3000), (4104, 4104, 4104), (760, 776, 4104), (200, 3000, 3000)),
        *((5000, 5000, 1000), (10_000, 1000, 1000), (1000, 1000, 10_000), (2056, 1032, 4104)),
        layouts=["NT", "TN"],
        group="multiples of 8, not of 64",
    ),
    # The rows of the long operand are not 16-byte aligned.
    *products(
        *((1, 4097, 4099), (16, 4097, 4099), (64, 4097, 4099)),
        *((1, 6137, 15731), (16, 11007, 4095), (64, 6133, 14887)),
        layouts=["NN", "NT"],
        group="few rows, odd row pitch",
    ),
)
LONG_K = (
    *products(
        *(
            (m, n, k)
            for k in (16384, 32768, 65536)
            for m, n in ((768, 768), (768, 3072), (1024, 1024), (512, 512), (256, 1024))
        ),
        layouts=["TN"],
        group="gradients of weights, by tokens",
    ),
    *products(
        *((1, 16384, 53248), (16, 8192, 28672), (64, 8192, 28672)),
        layouts=["NT"],
        group="few rows",
    ),
    *products((64, 64, 1_000_000), layouts=["NT"], group="little but K"),
)
FLOAT64 = (
    *squares(128, 256, 512, 1024, group="squares to 1024"),
    *squares(2048, 4096, 8192, 16384, layouts=LAYOUTS, group="squares from 2048"),
    *(replace(shape, group="odd sizes") for shape in RAGGED),
    *products(
        *((m, n, 4096) for m in (1, 4, 16, 64, 128) for n in (4096, 11008)),
        layouts=["NT"],
        group="few rows",
    ),
    *products((64, 64, 65536), (32, 32, 1_000_000), group="long K"),
    *squares(8, 16, 32, batch=10_000, group="batches"),
    *squares(64, batch=4096, group="batches"),
    *squares(512, batch=64, group="batches"),
)
# The rungs that run by name alone (csrc/kernels/basics), besides tensor_core.
COURSE = ("padded32", "register_tile", "vectorized", "double_buffered")
# Shapes that kernels are made for, on which they run by name.
KERNELS = (
    Shape(512, 512, 512, kernels=("naive", "tiled16", "tiled32", "fp16x3_small")),
    Shape(2048, 2048, 2048, kernels=("tiled64", *COURSE, "simt_tma", "fp16x3_wgmma")),
    Shape(1021, 1031, 1033, kernels=("simt_cp_async",)),
    Shape(32, 32, 32, batch=10_000, kernels=("simt_small",)),
    Shape(55, 587, 176, batch=96, layout="NT", kernels=("fp16x3_direct", "fp16x3_small")),
    Shape(1024, 256, 256, batch=64, kernels=("fp16x3_rows",)),
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
MMA_UNALIGNED = ("mma_sync", "mma_unaligned", "mma_tma")
MMA_KERNELS = (
    *squares(*LADDER_SIZES, kernels=("tensor_core", "mma_sync", "mma_tma")),
    Shape(30, 50, 40, kernels=("mma_direct", "mma_tma")),
    Shape(48784, 6, 11, batch=96, layout="TT", kernels=("mma_direct", "mma_tma")),
    Shape(64, 4097, 4099, kernels=MMA_UNALIGNED),
    Shape(175, 2593, 11453, layout="NT", kernels=MMA_UNALIGNED),
)

# --- the suites ----------------------------------------------------------------------------------

BOTH = {"precisions": ("fp32", "ieee")}
IEEE, TF32 = {"precisions": ("ieee",)}, {"precisions": ("tf32",)}
BFLOAT16, FLOAT64_ROWS = {"dtypes": ("bfloat16",)}, {"dtypes": ("float64",)}
COMPLEX64, COMPLEX128 = {"dtypes": ("complex64",)}, {"dtypes": ("complex128",)}
ACTIVATIONS = ("plain", "bias", "relu", "gelu")
OF_COMPLEX = "squares, odd sizes, few rows or columns, long K, batches and states of circuits"

SUITES = {
    # What `make bench` measures by itself, on a GPU and on a CPU.
    "headline": Suite(
        "a first look, on a GPU: squares, each precision and dtype, odd sizes, few rows, a batch",
        (
            *squares(1024, 2048, ways=FP32),
            *squares(4096, ways=EVERY_KIND),
            *squares(8192, 16384, ways=FP32),
            *products((4095, 4097, 4093), ways=FP32),
            *products((1, 4096, 4096), (16, 11008, 4096), layouts=["NT"], ways=FP32),
            *products((2048, 2048, 128), batch=32, layouts=["NT"], ways=FP32),
        ),
        summary=True,
    ),
    "host": Suite(
        "the host's kernels, which give the bits of the GPU's: seconds on two CPU cores",
        (
            *squares(
                256,
                ways=(
                    *by_name("naive", "tiled", "fp16x3"),
                    *by_name("tf32", precision="tf32"),
                    *by_name("mma", dtype="bfloat16"),
                    *by_name("tiled", dtype="float64"),
                ),
            ),
            Shape(127, 129, 131, layout="TT", ways=by_name("tiled", "fp16x3")),
            Shape(1, 1024, 1024, layout="NT", ways=by_name("tiled", "fp16x3")),
        ),
        summary=True,
    ),
    "smoke": Suite(
        "every kernel on small problems: minutes at most on two CPU cores",
        (
            *squares(64),
            *squares(256, layouts=LAYOUTS[:3]),
            Shape(127, 129, 131, layout="TT"),
            Shape(1, 1024, 1024, layout="NT"),
            Shape(32, 32, 4096),
            *squares(24, batch=64),
            *squares(512),
        ),
    ),
    "square": Suite("squares from 128 to 16384; at 4096 every kernel and every layout", SQUARE),
    "ladder": Suite(
        "every float32 kernel, on squares below 4096",
        squares(*LADDER_SIZES[:-1], every_kernel=True),
    ),
    "ieee": Suite(
        "squares and odd sizes in precision ieee; from 2048 on, squares in every layout",
        (
            *squares(128, 256, 512, 1024, group="squares to 1024"),
            *squares(2048, 4096, 8192, 16384, layouts=LAYOUTS, group="squares from 2048"),
            *ODD,
        ),
        **IEEE,
    ),
    "ragged": Suite("odd sizes, which no tile divides", RAGGED),
    "skinny": Suite("few rows or columns, and long or short K", SKINNY, **BOTH, copy=True),
    "transformer": Suite(
        "the layers of Llama-3-8B, GPT-2 and BERT, forward and backward", TRANSFORMER
    ),
    "batched": Suite(
        "batches of small cubes, and the products of attention", BATCHED, **BOTH, copy=True
    ),
    "prepared": Suite(
        "a prepared b, beside the plain product",
        products(
            *((16, 4096, 4096), (128, 4096, 4096), (4096, 4096, 4096), (4096, 11008, 4096)),
            (8192, 8192, 65536),
            layouts=["NT"],
        ),
        ("plain", "prepared"),
    ),
    "guard": Suite(
        "other data at 4096: uniform; with an infinite row; such that fp16x3 flags every element",
        squares(4096),
        ("plain", "uniform", "bad row", "flagged"),
        **BOTH,
    ),
    "opposed": Suite(
        "a's columns and b's rows scaled against each other by exp(2 N(0, 1)), beside unscaled",
        products((1024, 1024, 4096), (4096, 4096, 4096)),
        ("plain", "opposed"),
    ),
    "padded": Suite(
        "weights of which 1 % have decayed to 1e-8; the same where half of a's rows are zero",
        products((1024, 1024, 1024), (4096, 4096, 4096), (8192, 768, 3072), layouts=["NT"]),
        ("decayed", "padded"),
    ),
    "epilogue": Suite(
        "a linear layer with bias and activation, beside its plain product",
        EPILOGUE,
        ACTIVATIONS,
        **BOTH,
    ),
    "mma_square": Suite(
        "squares from 512 to 16384 in every layout",
        (
            *squares(512, 1024, layouts=LAYOUTS, group="512 and 1024"),
            *(
                replace(shape, energy=shape.m >= 8192 and shape.layout == "NT")
                for shape in squares(2048, 4096, 8192, 16384, layouts=LAYOUTS, group="from 2048")
            ),
        ),
        dtypes=("bfloat16", "float16"),
    ),
    "mma_ragged": Suite("the odd sizes of the suites ragged and ieee", (*RAGGED, *ODD), **BFLOAT16),
    "mma_unaligned_rows": Suite(
        "rows aligned to 16 bytes but not to cache lines, and few rows of odd row pitch",
        UNALIGNED_ROWS,
        **BFLOAT16,
    ),
    "mma_decode": Suite(
        "few rows times the weights of large layers", DECODE, **BFLOAT16, copy=True
    ),
    "mma_long_k": Suite("K of several chunks in the mma order", LONG_K, **BFLOAT16),
    "mma_transformer": Suite("the layers of the suite transformer", TRANSFORMER, **BFLOAT16),
    "mma_epilogue": Suite(
        "a linear layer with bias and activation, beside its plain product",
        EPILOGUE,
        ACTIVATIONS,
        **BFLOAT16,
    ),
    "tf32_square": Suite(
        "squares from 1024 to 16384 and one odd size, in precision tf32 on both sides",
        (
            *squares(1024, 2048, group="1024 and 2048"),
            *squares(4096, 8192, layouts=LAYOUTS, group="from 4096"),
            *squares(16384, group="from 4096"),
            Shape(4095, 4097, 4093, group="odd sizes"),
        ),
        **TF32,
    ),
    "float64": Suite(
        "squares in every layout, odd sizes, few rows, long K and batches, in float64",
        FLOAT64,
        **FLOAT64_ROWS,
        copy=True,
    ),
    "float64_kernels": Suite(
        "the kernels of float64 by name, on squares and vectors",
        (
            *squares(
                *LADDER_SIZES, kernels=("naive", "tiled64", "f64_direct", "f64_mma", "f64_tma")
            ),
            Shape(1, 4096, 4096, layout="NT", kernels=("f64_direct", "f64_gemv")),
            Shape(11008, 1, 4096, layout="TN", kernels=("f64_direct", "f64_gemv")),
        ),
        **FLOAT64_ROWS,
    ),
    "complex64": Suite(
        f"{OF_COMPLEX}, in complex64", complex_products(8192), **BOTH, **COMPLEX64, copy=True
    ),
    "complex128": Suite(
        f"{OF_COMPLEX}, in complex128", complex_products(4096), **COMPLEX128, copy=True
    ),
    "complex_adjoint": Suite(
        "a's conjugate transpose times b, beside a's transpose",
        squares(1024, 4096, layouts=["TN"]),
        ("plain", "conjugated"),
        **BOTH,
        **COMPLEX64,
    ),
    "kernels": Suite("every float32 kernel by name, on shapes that it is made for", KERNELS),
    "mma_kernels": Suite(
        "every kernel for 16-bit floats by name, on squares and on shapes that it is made for",
        MMA_KERNELS,
        **BFLOAT16,
    ),
    "tf32_kernels": Suite(
        "every kernel of precision tf32 by name, on squares",
        squares(*LADDER_SIZES, kernels=("tf32_tma",)),
        **TF32,
    ),
    "fp16_peer": Suite(
        "three float16 products by fp16x3, beside one by cuBLAS",
        squares(4096, 8192, layouts=["NT"]),
        ("fp16 peer",),
    ),
}
