"""The course: what its sources are read as, what Nsight Compute's output becomes, its pages."""

import dataclasses
import json
import re
import subprocess

import pytest

from benchmarks.pages import course, course_kernels
from benchmarks.pages.course_kernels import rungs, words_by_bank
from benchmarks.studies import course as study
from torch_tiled._op import registry

MODULE = "tiled::cuda::(anonymous namespace)::"


# --- the sources ---------------------------------------------------------------------------------


def test_every_file_of_the_course_is_read():
    """Each launcher of basics is a kernel of the table, with a page for its step."""
    launchers = []
    for path in sorted(course_kernels.FOLDER.glob("*.cu")):
        launchers += re.findall(r"\blaunch_(\w+)\(const Problem& p, const Plan", path.read_text())
    assert list(rungs()) == launchers
    assert set(launchers) <= registry.kernels().keys()
    assert list(course.pages()) == [1, 2, 3, 4, 5, 6, 7]


def test_constants_are_those_of_the_tile_that_float32_launches():
    found = {
        name: (rung.m, rung.n, rung.k, rung.per, rung.threads, rung.stages)
        for name, rung in rungs().items()
    }
    assert found["naive"] == (32, 32, 1, 1, 1024, 0)
    assert found["tiled32"] == found["padded32"] == (32, 32, 32, 1, 1024, 1)
    assert found["tiled64"] == (64, 64, 16, 4, 256, 1)  # not the tile of float64, its neighbour
    assert found["register_tile"] == found["vectorized"] == (128, 128, 16, 8, 256, 1)
    assert found["double_buffered"] == (128, 128, 16, 8, 256, 2)
    assert found["tensor_core"][4:] == (128, 3)
    assert rungs()["padded32"].shared_bytes == 4 * (32 * 36 + 32 * 33)
    assert rungs()["double_buffered"].shared_bytes == 2 * rungs()["vectorized"].shared_bytes
    assert rungs()["tensor_core"].shared_bytes == 3 * 2 * 128 * 64 * 2


def test_reads_are_those_of_the_tile():
    """Each element of C reads 2 K elements, shared by the rows or the columns of a tile."""
    assert rungs()["naive"].reads == 2
    assert rungs()["tiled16"].reads == 2 / 16
    assert course.model_gigabytes(rungs()["tiled32"], 1024) == pytest.approx(4 * 2**31 / 32 / 1e9)
    assert course.model_gigabytes(rungs()["tensor_core"], 64) == pytest.approx(2**18 / 64 / 1e9 * 2)


def test_conflicts_are_counted_by_bank():
    assert words_by_bank([0, 32, 32, 33]) == {0: 2, 1: 1}  # equal words are one access
    padded = rungs()["padded32"]

    def with_pitch(pitch):
        constants = padded.constants | {"kPitchB": pitch}
        return dataclasses.replace(padded, constants=constants).wavefronts("b", k_major=True)

    assert [with_pitch(pitch) for pitch in (32, 33, 34, 36, 48)] == [32, 1, 2, 4, 16]
    assert padded.wavefronts("a", k_major=False) == 4
    tiled = rungs()["tiled32"]
    assert [tiled.wavefronts("b", k_major) for k_major in (False, True)] == [1, 32]


def test_a_product_s_stores_are_counted():
    """The first step of tiled32 at 64: 2 x 2 blocks, two steps, 32 stores of a warp for each."""
    assert course.stores(rungs()["tiled32"], 64) == {"NN": 8 * 64, "NT": 8 * (32 + 32 * 32)}


# --- Nsight Compute ------------------------------------------------------------------------------

HEADINGS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Section Name"),
    *("Metric Name", "Metric Unit", "Metric Value"),
)


def csv_line(*cells) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def ncu_log(launches: list[tuple[str, dict[str, str]]]) -> str:
    """The output of ncu --csv of these kernels and metrics."""
    lines = ["==PROF== Connected to process 1 (/usr/bin/python3)", csv_line(*HEADINGS)]
    lines.insert(1, '==PROF== Profiling "naive_kernel" - 0: 0%....50%....100% - 21 passes')
    for number, (kernel, metrics) in enumerate(launches):
        for name, value in metrics.items():
            launch = (number, 1, "python3", "127.0.0.1", kernel, 1, 7, "(1024, 1, 1)", "(4, 1, 1)")
            lines.append(
                csv_line(*launch, 0, "9.0", "Command line profiler metrics", name, "", value)
            )
    return "\n".join([*lines, "==PROF== Disconnected from process 1"])


METRICS = {
    "launch__registers_per_thread": "32",
    "launch__occupancy_limit_registers": "2",
    "launch__occupancy_limit_shared_mem": "25",
    "launch__occupancy_limit_warps": "2",
    "sm__maximum_warps_per_active_cycle_pct": "100",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "99.97",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": "4,429,185,024",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": "4,160,749,568",
    "dram__sectors_read.sum": "n/a",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "4.5",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "1",
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio": "12.25",
    "smsp__average_warps_issue_stalled_membar_per_issue_active.ratio": "0",
    "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio": "nan",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": "2",
}


def jobs(size=64):
    return study.plan(study.parse(["--size", str(size), "--device", "cpu"]))


def full_log() -> str:
    """Every job's launch, each before one of another kernel."""
    launches = []
    for job in jobs():
        kernel = f"void {MODULE}{rungs()[job.algorithm].function}<float, {MODULE}Tile<(int)32>>(P)"
        launches += [(f"void {MODULE}transpose_kernel<float>(P)", {}), (kernel, METRICS)]
    return ncu_log([(kernel, metrics or {"x": "1"}) for kernel, metrics in launches])


def test_the_output_of_ncu_becomes_a_profile_of_each_product():
    found = list(study.profiles(full_log(), jobs()))
    wanted = [(job.algorithm, job.shape.layout) for job in jobs()]
    assert [(each["kernel"], each["layout"]) for each in found] == wanted
    assert {name for name, _ in wanted} == set(rungs()) and len(wanted) == 2 * len(rungs())
    each = found[0]
    assert each["registers"] == 32 and each["store_wavefronts"] == 4_429_185_024
    assert each["dram_read_sectors"] is None  # n/a
    assert each["fma_percent"] is None  # not in the output
    stalls = {"mio_throttle": 12.25, "barrier": 4.5, "short_scoreboard": 2}
    assert each["stalls"] == stalls and list(each["stalls"]) == list(stalls)
    assert json.loads(json.dumps(each)) == each


def test_a_kernel_that_ncu_does_not_show_is_told_in_a_sentence():
    log = ncu_log([(f"void {MODULE}naive_kernel<float>(P)", METRICS)])
    found = []
    with pytest.raises(study.NoProfile, match=r"it shows no tiled_kernel of .*; its last line is"):
        found.extend(study.profiles(log, jobs()))
    assert [each["kernel"] for each in found] == ["naive"]  # what it shows is kept


@pytest.mark.parametrize(
    "installed, outcome, sentence",
    [
        (None, None, "ncu is not installed"),
        ("ncu", subprocess.TimeoutExpired("ncu", 80), "ncu took more than 80 s"),
        ("ncu", 9, "ncu ended with status 9; its last line is: ==ERROR== no permission"),
        ("ncu", 0, None),
    ],
)
def test_ncu_is_asked_once_or_not_in_a_sentence(monkeypatch, installed, outcome, sentence):
    def run(command, cwd, timeout):
        if isinstance(outcome, Exception):
            raise outcome
        assert command[0] == "ncu" and command[-3:] == ["--profile", "--size", "4096"]
        log = study.Path(command[command.index("--log-file") + 1])
        log.write_text("==ERROR== no permission" if outcome else full_log())
        return subprocess.CompletedProcess(command, outcome)

    monkeypatch.setattr(study.shutil, "which", lambda name, path: installed)
    monkeypatch.setattr(study.subprocess, "run", run)
    args = study.parse(["--device", "cpu"])
    args.device = "cuda"
    if sentence is None:
        assert len(list(study.ask_ncu(args, jobs()))) == len(jobs())
    else:
        with pytest.raises(study.NoProfile, match=sentence):
            list(study.ask_ncu(args, jobs()))


def test_the_study_times_every_kernel_in_both_layouts(run):
    options = "--size 64 --device cpu --seconds 1e-3 --repeats 1"
    status, results, output = run(study.main, options)
    assert status == 0 and results["profiles"] == []
    found = [(row["kernel"], row["layout"]) for row in results["rows"]]
    assert sorted(found) == sorted((name, layout) for name in rungs() for layout in study.LAYOUTS)
    dtypes = {row["kernel"]: row["dtype"] for row in results["rows"]}
    assert dtypes.pop("tensor_core") == "bfloat16" and set(dtypes.values()) == {"float32"}
    said = "Nsight Compute counted 0 products: there is no GPU here"
    assert results["header"]["profile"] == said and said in output
    assert results["header"]["profile_size"] == 64


# --- the pages -----------------------------------------------------------------------------------


@pytest.fixture
def measured():
    """Results as the study writes them, with rates that tell the kernels apart."""
    rows, profiles = [], list(study.profiles(full_log(), jobs()))
    for rate, name in enumerate(rungs(), start=1):
        for layout, factor in (("NN", 1), ("NT", 0.5)):
            size = dict.fromkeys("mnk", course.SIZE)
            speed = {"tflops": rate * factor, "ratio": rate * factor / 50}
            rows.append({"kernel": name, "layout": layout, **size, **speed})
    header = {"torch": "2.11", "cuda": "13.0", "driver": "580", "git_commit": "c" * 40}
    header |= {"device": "NVIDIA H200", "time": "now", "profile_size": 64}
    return {"header": header, "rows": rows, "profiles": profiles}


def test_the_pages_show_what_was_measured(measured):
    text = course.write_step(3, measured)
    assert "| TFLOP/s: NN, NT | 4, 2 |" in text
    assert "| of cuBLAS | 0.08, 0.04 |" in text
    assert "| over the kernel before | 1.33, 1.33 |" in text
    assert "| registers, blocks an SM | 32, 2 |" in text
    assert "| occupancy, reached, % | 100, 100 |" in text
    assert "| shared loads, stores over ideal | -, 16.50 |" in text
    assert "| stalls | mio throttle 12, barrier 4.5, short scoreboard 2 |" in text
    assert "fma pipe" in text and "tensor pipe" in course.write_step(7, measured)
    assert course.write_step(4, measured).splitlines()[0].count("`") == 4  # two kernels
    assert "| `tiled32`, NT | 32 | 32 | 0 M | 4429 M |" in course.write_banks(measured)
    stairs = course.write_staircase(measured)
    assert "| 3. [`padded32`](03_bank_conflicts.md) | 4 | 0.08 | 1.33 |" in stairs
    assert "counted products of 64 cubed" in course.write_source(measured)
    sectors = {"l2_read_sectors": 10**6, "dram_read_sectors": 5 * 10**5}
    measured["profiles"] = [each | sectors for each in measured["profiles"]]
    measured["header"]["profile_size"] = 1000
    row = "| `tiled32` | 2 | registers, threads | 32 | 8192 | 520 | 3 | 0.25 | 0.032 | 0.016 |"
    assert row in course.write_reads(measured)  # the model is of the size that was counted


def test_pages_have_few_words():
    """Tables that are written by a script are not counted."""
    for page in course.pages().values():
        text = re.sub(r"<!-- (\w+):begin.*?\1:end -->", "", page.read_text(), flags=re.DOTALL)
        assert len(text.split()) <= 300, page
        for part in ("**Idea.**", "**Model.**", "**Question.**", "**What limits it now.**"):
            assert text.count(part) == 1, f"{page}: {part}"
        assert text.count("<details markdown=") == text.count("</details>") == 1


def test_pages_name_neighbours_to_compare():
    """From step 2 to 6, `diff` of the file before and of the page's own; step 7 is a new kernel."""
    paths = {rung.step: rung.path.name for rung in rungs().values()}
    for step, page in course.pages().items():
        own, text = paths[step], page.read_text()
        assert f"[{own}](../../csrc/kernels/basics/{own})" in text
        if 1 < step < 7:
            folder = "csrc/kernels/basics"
            assert f"diff {folder}/{paths[step - 1]} {folder}/{own}\n" in text
