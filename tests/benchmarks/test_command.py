"""What the commands of benchmarks refuse: each says so in a sentence, with the value."""

import pytest
import torch

from benchmarks.gemm import __main__ as gemm
from benchmarks.stream import __main__ as stream
from benchmarks.studies import attack_bounds, complex_errors, course, errors, which_way
from benchmarks.suites import front_page, host
from benchmarks.survey import __main__ as survey
from benchmarks.survey import fit_costs

EVERY = (gemm, stream, survey, front_page, host, course, which_way, errors, complex_errors)
EVERY += (attack_bounds,)


@pytest.mark.parametrize(
    "module, arguments, sentence",
    [
        (gemm, "--algorithm fastest", "argument --algorithm: invalid choice: 'fastest'"),
        (gemm, "--suite round", "invalid choice: 'round'"),
        (gemm, "--seconds 0", "argument --seconds: it is 0; it must be more than 0."),
        (gemm, "--repeats 0", "argument --repeats: it is 0; it must be at least 1."),
        (gemm, "--json /nowhere/at/all.json", "the folder /nowhere/at does not exist."),
        *(
            (gemm, f"--shape {x}", f"{x} is no shape; write MxNxK, or BATCHxMxNxK, of numbers")
            for x in ("5x6", "5x6x0", "1x2x3x4x5", "large")
        ),
        (gemm, "--profile --device cpu", "--profile is for kernels on a GPU; "),
        (stream, "--budget -5", "argument --budget: it is -5; it must be at least 1."),
        (stream, "--sizes 8 0", "argument --sizes: it is 0; it must be at least 1."),
        (survey, "--count 0", "argument --count: it is 0"),
        (survey, "--seconds nan", "argument --seconds: it is nan"),
        (survey, "--most 100", "argument --most: it is 100; it must be at least 100000."),
        (survey, "--dtype float16 --precision ieee", "--precision is ieee, which is for float32"),
        (survey, "--beside mma_sync", 'algorithm "mma_sync" takes float16 and bfloat16'),
        (fit_costs, "r.json --mhz -5", "argument --mhz: it is -5"),
        (fit_costs, "r.json --sms 0", "argument --sms: it is 0"),
        (fit_costs, "r.json --compute-capability 75", "it is 75; it must be at least 80."),
        (errors, "--seeds 0", "argument --seeds: it is 0"),
        (errors, "--k-max 32", "argument --k-max: it is 32; it must be at least 64."),
        (which_way, "--sizes 0 --device cpu", "a size is 0; it must be a multiple of 1"),
        (course, "--size 0", "argument --size: it is 0; it must be at least 1."),
        (course, "--profile --device cpu", "--profile is for kernels on a GPU; "),
        (attack_bounds, "--size 1", "argument --size: it is 1; it must be at least 2."),
        (attack_bounds, "--rounds -1", "argument --rounds: it is -1"),
        (attack_bounds, "--order tf32 --k 63 --device cpu", "--k has no sum of 64 or more"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(capsys, module, arguments, sentence):
    with pytest.raises(SystemExit) as stop:
        module.main(arguments.split())
    assert stop.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("module", EVERY, ids=lambda module: module.__name__)
def test_a_missing_gpu_is_refused_in_a_sentence(capsys, monkeypatch, module):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        module.main(["--device", "cuda"])
    assert "torch sees no CUDA device; leave --device out" in capsys.readouterr().err
