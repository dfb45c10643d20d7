"""The drawings of docs/course, by the constants that course_kernels reads from the sources."""

from pathlib import Path

from benchmarks.pages import plots
from benchmarks.pages.course_kernels import BANKS, SECTOR, WARP, Rung, rungs

LIGHT = "0.92"
GROUP = 4  # adjacent rows and columns of C of a thread; its other groups are half a tile away

Cell = tuple[float, float, float, float]  # the first row and column, then rows and columns


def panels(*shape: int, size: tuple[float, float], **options):
    """A figure and its axes, with room for titles of two lines."""
    figure, every = plots.subplots(*shape, size=size, **options)
    figure.get_layout_engine().set(h_pad=0.12)
    return figure, every


def grid(axes, rows: int, columns: int, step: int, title: str, size: str = "") -> None:
    """A matrix of so many elements, its first row on top, with a line every `step` elements."""
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xlabel=size)
    axes.set_xticks(range(0, columns + 1, step), labels=[])
    axes.set_yticks(range(0, rows + 1, step), labels=[])
    axes.tick_params(length=0)
    axes.set_title(title, fontsize="small")
    axes.xaxis.label.set_size("small")


def fill(axes, color: str, cells: list[Cell], label: str = "") -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    patches = [Rectangle((column, row), width, height) for row, column, height, width in cells]
    axes.add_collection(PatchCollection(patches, facecolor=color, edgecolor="white", linewidth=0.3))
    if label:
        axes.fill_between([], [], color=color, label=label)


def sectors(elements: list[int]) -> int:
    """How many sectors of memory hold these float32 elements of a matrix."""
    return len({4 * element // SECTOR for element in elements})


def draw_naive(path: Path) -> None:
    """What a warp of naive reads in one step of K, if B is stored by rows or transposed."""
    tile, far = rungs()["naive"], 1 << 12
    figure, every = panels(1, 4, size=(9, 3.2))
    lanes = range(WARP)
    found = [sectors([0] * WARP), sectors([*lanes]), sectors([lane * far for lane in lanes])]
    said = [f"{count} sector{'s' * (count > 1)}" for count in found]
    grid(every[0], tile.m, tile.n, 8, "C: a warp computes\n32 columns of a row", "tile of a block")
    fill(every[0], LIGHT, [(0, 0, tile.m, tile.n)])
    fill(every[0], plots.GREEN, [(4, lane, 1, 1) for lane in lanes], "a lane's element of C")
    grid(every[1], tile.m, tile.n, 8, f"A: all lanes read\none element, {said[0]}", "k ->")
    fill(every[1], plots.BLUE, [(4, 10, 1, 1)], "what the warp reads of A at one k")
    grid(
        every[2], tile.m, tile.n, 8, f"B stored by rows:\n{said[1]} of {SECTOR} bytes", "columns ->"
    )
    fill(every[2], plots.ORANGE, [(10, lane, 1, 1) for lane in lanes], "and of B")
    grid(every[3], tile.m, tile.n, 8, f"B transposed:\n{said[2]}", "k ->")
    fill(every[3], plots.ORANGE, [(lane, 10, 1, 1) for lane in lanes])
    figure.legend(loc="outside lower center", ncols=3)
    plots.save(figure, path)


def draw_tiled(path: Path) -> None:
    """A step of a block along K, with tiles of 16 and of 32: what it loads and computes."""
    size = 96
    figure, every = panels(1, 2, size=(9, 4.6))
    for axes, name in zip(every, ("tiled16", "tiled32"), strict=True):
        rung = rungs()[name]
        gap, step = 6, size // 2 // rung.k
        title = f"{name}: an element is used {rung.n} times, {rung.threads} threads"
        axes.set(xlim=(-1, 2 * size + gap), ylim=(2 * size + gap, -1), aspect="equal")
        axes.axis("off")
        axes.set_title(title, fontsize="small")
        far = size + gap  # A and C begin there, below B; B and C to the right of A
        at = 2 * rung.n if rung.n < 32 else rung.n  # the tile of C in the matrix
        fill(axes, LIGHT, [(far, 0, size, size), (0, far, size, size), (far, far, size, size)])
        read = range(step * rung.k, size, rung.k)
        fill(axes, "#b9d7ea", [(far + at, k, rung.m, rung.k) for k in read])
        fill(axes, "#f7dfaa", [(k, far + at, rung.k, rung.n) for k in read])
        now = step * rung.k
        fill(axes, plots.BLUE, [(far + at, now, rung.m, rung.k)])
        fill(axes, plots.ORANGE, [(now, far + at, rung.k, rung.n)])
        fill(axes, plots.GREEN, [(far + at, far + at, rung.m, rung.n)])
        for row, column, text in ((far, 0, "A"), (0, far, "B"), (far, far, "C")):
            axes.text(column + 2, row + 2, text, va="top")
    for color, label in (
        (plots.BLUE, "tile of A in shared memory"),
        (plots.ORANGE, "tile of B"),
        (plots.GREEN, "tile of C, an element a thread"),
        ("#b9d7ea", "later steps along K"),
    ):
        every[0].fill_between([], [], color=color, label=label)
    figure.legend(loc="outside lower center", ncols=4)
    plots.save(figure, path)


def draw_banks(path: Path) -> None:
    """The words that a warp stores at once, if the operand is transposed: a row has all banks."""
    shown = (("tiled32", "b", "B transposed"), ("padded32", "b", "B transposed"))
    shown += (("padded32", "a", "A transposed"),)
    figure, every = panels(1, len(shown), size=(9, 3.8))
    for axes, (name, operand, what) in zip(every, shown, strict=True):
        rung = rungs()[name]
        # A transposed A is MN-major, and a transposed B is K-major.
        words = sum(rung.stored(operand, k_major=operand == "b"), [])
        *_, pitch = rung.dimensions(operand)
        count = rung.wavefronts(operand, k_major=operand == "b")
        waits = f"{count} wavefront{'s' * (count > 1)}"
        grid(axes, WARP + 4, BANKS, 4, f"{name}, {what}:\npitch {pitch}, {waits}", "bank ->")
        fill(
            axes,
            plots.VERMILION if count > 1 else plots.GREEN,
            [(word // BANKS, word % BANKS, 1, 1) for word in words],
        )
    every[0].set_ylabel("32 words of shared memory a row", fontsize="small")
    plots.save(figure, path)


def elements(rung: Rung, thread: int) -> tuple[list[int], list[int]]:
    """The rows and the columns of C of a thread, in its block's tile."""
    across = rung.n // rung.per
    first = thread // across * GROUP, thread % across * GROUP
    nth = [i % GROUP + i // GROUP * (rung.m // 2) for i in range(rung.per)]
    rows, columns = ([start + i for i in nth] for start in first)
    return rows, columns


def draw_register_tile(path: Path) -> None:
    """The elements of C of a warp and of a thread, and what a thread reads for one k."""
    names = ("padded32", "tiled64", "register_tile")
    figure, every = panels(1, len(names), size=(9, 3.9))
    for axes, name in zip(every, names, strict=True):
        rung = rungs()[name]
        edge = rung.m // 16
        reads, products = 2 * rung.per, rung.per**2
        title = f"{name}: {reads} numbers\nfor {products} FMA{'s' * (products > 1)}"
        axes.set(xlim=(-3 * edge, rung.n), ylim=(rung.m, -3 * edge), aspect="equal", title=title)
        axes.title.set_size("small")
        axes.axis("off")
        fill(axes, LIGHT, [(0, 0, rung.m, rung.n)])
        groups = (
            {
                (row, column)
                for thread in range(WARP)
                for row in elements(rung, thread)[0]
                for column in elements(rung, thread)[1]
            }
            if rung.per > 1
            else {(0, column) for column in range(WARP)}
        )
        side = GROUP if rung.per > 1 else 1
        corners = [each for each in groups if each[0] % side == each[1] % side == 0]
        fill(axes, "#a8dcc9", [(row, column, side, side) for row, column in sorted(corners)])
        rows, columns = elements(rung, 5) if rung.per > 1 else ([0], [5])
        fill(axes, plots.GREEN, [(row, column, 1, 1) for row in rows for column in columns])
        fill(axes, plots.BLUE, [(row, -2 * edge, 1, edge) for row in rows])
        fill(axes, plots.ORANGE, [(-2 * edge, column, edge, 1) for column in columns])
    for color, label in (
        (plots.GREEN, "a thread's elements of C"),
        ("#a8dcc9", "its warp's"),
        (plots.BLUE, "what it reads of A"),
        (plots.ORANGE, "and of B"),
    ):
        every[0].fill_between([], [], color=color, label=label)
    figure.legend(loc="outside lower center", ncols=4)
    plots.save(figure, path)


def draw_vectorized(path: Path) -> None:
    """How a warp brings vectors of A from global memory to the transposed tile."""
    rung = rungs()["vectorized"]
    vector, lanes = rung.vector, rung.k // rung.vector
    figure, (memory, shared) = panels(1, 2, size=(9, 3.6), gridspec_kw={"width_ratios": [1, 2]})
    rows = 2 * WARP // lanes
    grid(memory, rows, rung.k, vector, f"A in global memory:\n{vector} floats a load", "k ->")
    memory.set_ylabel("rows of A", fontsize="small")
    mine = 9
    cells = [(lane // lanes, lane % lanes * vector, 1, vector) for lane in range(WARP)]
    fill(memory, "#b9d7ea", cells, "what a warp loads at once")
    fill(memory, plots.BLUE, [cells[mine]], "a lane's vector")
    *_, pitch = rung.dimensions("a")
    count = rung.wavefronts("a", k_major=True)
    title = (
        f"A in shared memory, (kK, kM) with pitch {pitch}:\na store of a warp, {count} wavefronts"
    )
    grid(shared, rung.k, 2 * rows, vector, title, "rows of A ->")
    shared.set_ylabel("k", fontsize="small")
    first = [(word % pitch, word // pitch) for (word,) in rung.stored("a", k_major=True)]
    fill(shared, "#f7dfaa", [(k, mn, 1, 1) for mn, k in first], "what a warp stores at once")
    column, step = first[mine]
    fill(shared, plots.BLUE, [(step + i, column, 1, 1) for i in range(vector)])
    read = [(0, 16 + i, 1, 1) for i in range(GROUP)]
    fill(shared, plots.GREEN, read, f"{GROUP} numbers of a fragment, one load")
    figure.legend(loc="outside lower center", ncols=4)
    plots.save(figure, path)


def timeline(axes, rows: dict[str, list[tuple[float, float, str, str]]], title: str) -> None:
    """Bars over time by row: begin, end, colour and text."""
    for place, spans in enumerate(rows.values()):
        for begin, end, color, text in spans:
            axes.barh(place, end - begin, 0.75, left=begin, color=color, edgecolor="white")
            middle = {"ha": "center", "va": "center", "color": "white", "fontsize": 7}
            axes.text((begin + end) / 2, place, text, **middle)
    axes.set_yticks(range(len(rows)), labels=list(rows))
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.grid(False)
    axes.set_xlabel("time, not to scale", fontsize="small")
    axes.set_title(title, fontsize="small")


STAGES = (plots.BLUE, plots.ORANGE, plots.PURPLE, plots.VERMILION)  # their colours


def staged(stages: int, steps: int, load: float, multiply: float) -> tuple[list, list]:
    """When each step is loaded and multiplied, if a stage is loaded as soon as it is free."""
    loads, products, free, ready = [], [], [0.0] * stages, 0.0
    for step in range(steps):
        stage = step % stages
        begin = max(free[stage], loads[-1][1] if loads else 0)
        loads.append((begin, begin + load, STAGES[stage], f"{step}"))
        ready = max(ready, begin + load)
        products.append((ready, ready + multiply, STAGES[stage], f"{step}"))
        ready += multiply
        free[stage] = ready
    return loads, products


def draw_double_buffered(path: Path) -> None:
    """The steps of K over time, with the stages of 05 and of 06."""
    names = ("vectorized", "double_buffered")
    figure, every = panels(2, 1, size=(9, 3.6), sharex=True)
    for axes, name in zip(every, names, strict=True):
        stages = rungs()[name].stages
        loads, products = staged(stages, 6, 1.0, 1.4)
        kept = f"{stages} stage{'s' * (stages > 1)} in shared memory"
        timeline(axes, {"load step": loads, "multiply step": products}, f"{name}: {kept}")
    every[0].set_xlabel("")
    plots.save(figure, path)


def draw_tensor_core(path: Path) -> None:
    """The boxes of a stage and the rows of a warp, and the ring of stages over time."""
    rung, box = rungs()["tensor_core"], rungs()["tensor_core"].k
    figure, (tile, time) = panels(1, 2, size=(9, 3.6), gridspec_kw={"width_ratios": [1, 1.5]})
    gap = 8
    edge = box + gap
    tile.set(xlim=(0, edge + rung.n), ylim=(edge + rung.m, 0), aspect="equal")
    tile.axis("off")
    tile.set_title(f"a stage: 4 boxes of {box} x {box}", fontsize="small")
    boxes = range(0, rung.m, box)
    fill(tile, plots.BLUE, [(edge + row, 0, box, box) for row in boxes], "boxes of A")
    fill(tile, plots.ORANGE, [(0, edge + column, box, box) for column in boxes], "boxes of B")
    warps = rung.threads // WARP
    for warp, color in zip(range(warps), ("#00583f", "#009e73", "#5cc3a5", "#a8dcc9"), strict=True):
        rows = [edge + row + warp * box // warps for row in boxes]
        cells = [(row, edge, box / warps, rung.n) for row in rows]
        fill(tile, color, cells, "rows of C, by warp" if warp == 1 else "")
    loads, products = staged(rung.stages, 8, 0.8, 1.2)
    title = f"{rung.stages} stages, each with a colour"
    timeline(time, {"TMA, step": loads, "wgmma, step": products}, title)
    figure.legend(loc="outside lower center", ncols=3)
    plots.save(figure, path)


DRAWINGS = {
    "01_naive": draw_naive,
    "02_tiled": draw_tiled,
    "03_bank_conflicts": draw_banks,
    "04_register_tile": draw_register_tile,
    "05_vectorized": draw_vectorized,
    "06_double_buffered": draw_double_buffered,
    "07_tensor_core": draw_tensor_core,
}
