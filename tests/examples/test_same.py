"""The examples that compare rows alone and in batches: torch_tiled.invariant's are all equal."""

import functools
import sys

import pytest
import same_embeddings
import same_rows
import same_tokens
import torch
from helpers.needs import needs_cuda

import torch_tiled

SMALL = "--texts 9 --layers 1 --width 64".split()


def rows_of(capsys):
    """The cells of each row of the table that was printed."""
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells[1:] if not row[0].startswith("-")]


def test_embeddings_have_the_same_bits_in_any_batch(capsys, device):
    pytest.importorskip("transformers")
    same_embeddings.main([*SMALL, "--device", device])
    rows = rows_of(capsys)
    assert [row[0] for row in rows] == [way for way in same_embeddings.WAYS for _ in range(7)]
    assert all(row[3] == "100.0%" for row in rows if row[0] == "invariant()")


@pytest.mark.usefixtures("collected")
@needs_cuda
def test_embeddings_by_graphs_have_the_bits_of_calls(capsys):
    pytest.importorskip("transformers")
    same_embeddings.main([*SMALL, "--graph", "--device", "cuda"])
    rows = rows_of(capsys)
    assert [row[0] for row in rows] == [way for way in same_embeddings.WAYS for _ in range(7)]
    assert all(row[3] == "100.0%" for row in rows if row[0] == "invariant()")
    model, texts = same_embeddings.bert(1, 64).cuda(), same_embeddings.draw(7)
    call = functools.partial(same_embeddings.call, model)
    with torch_tiled.invariant(), torch.no_grad():
        replay = same_embeddings.capture(model, 4)
        for batch in (texts[:4], texts[4:]):
            replayed, called = (same_embeddings.embed(way, batch) for way in (replay, call))
            assert torch.equal(replayed, called)


def test_graphs_need_a_cuda_device(capsys):
    with pytest.raises(SystemExit):
        same_embeddings.main(["--graph", "--device", "cpu"])
    assert "--graph needs a CUDA device, and --device is cpu" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", same_tokens.DTYPES)
def test_tokens_have_the_same_bits_in_any_batch(dtype, capsys, device):
    pytest.importorskip("transformers")
    small = "--prompts 3 --longest 70 --tokens 3 --layers 1 --width 64".split()
    same_tokens.main([*small, "--dtype", dtype, "--device", device])
    rows = rows_of(capsys)
    cases = ["one by one", "a batch", "the batch reversed", "continuous batching", "training"]
    assert [row[2] for row in rows] == cases * len(same_tokens.WAYS)
    assert all(row[3:5] == ["9", "9"] for row in rows if row[1] == "invariant()")


def test_rows_have_the_same_bits_in_any_batch(capsys, device):
    same_rows.main(["--rows", "12", "--device", device])
    rows = rows_of(capsys)
    assert len(rows) == 3 * len(same_rows.WAYS) * len(same_rows.SIZES)
    assert all(row[3] == "100.0%" for row in rows if row[1] == "invariant()")


@pytest.mark.parametrize("example", [same_embeddings, same_tokens])
def test_an_example_says_what_it_needs(example, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="pip install transformers"):
        example.main(["--device", "cpu"])
