"""Converted layers whose products PyTorch computes: they warn once, and strict=True forbids it."""

import copy
import threading
import time
import warnings

import pytest
import torch
import torch.nn.utils.prune
from helpers.converting import as_converted, small_model
from torch.testing import assert_close

import torch_tiled
from torch_tiled import converted


def fallen_back(**options):
    """A converted model of a dtype that torch_tiled does not multiply, and an input for it.

    It calls a layer twice.
    """
    layer = torch.nn.Linear(6, 6)
    model = as_converted(
        torch.nn.Sequential(layer, torch.nn.ReLU(), layer, torch.nn.Linear(6, 3)), **options
    )
    model.requires_grad_(False)
    return to_integers(model, torch.int64), torch.randint(-9, 9, (2, 6))


def to_integers(model, dtype):
    return model._apply(lambda x: (9 * x).to(dtype))


def texts_of(record):
    """The texts of torch_tiled's warnings, each of which must point to a line of this file."""
    ours = [warning for warning in record if str(warning.message).startswith("torch_tiled")]
    assert all(warning.category is UserWarning for warning in ours)
    assert {warning.filename for warning in ours} <= {__file__}
    return [str(warning.message) for warning in ours]


def sentences(why):
    """The warnings of both layers of that model."""
    return [f"torch_tiled: {name} (Linear) computes by torch, since {why}" for name in ("0", "3")]


INTEGERS = "its weight is torch.int64"


def warnings_of(run, *args):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        run(*args)
    return texts_of(record)


def test_each_layer_says_once_that_torch_computes():
    for _ in range(2):  # the second model too, whose layers have the same names
        model, x = fallen_back()
        assert warnings_of(model, x) == sentences(INTEGERS)
        assert warnings_of(model, x) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = model(x)
    torch_tiled.revert(model)
    assert torch.equal(model(x), y)


def test_each_reason_is_given_once():
    model, x = fallen_back()
    assert warnings_of(model, x) == sentences(INTEGERS)
    to_integers(model, torch.int32)
    assert warnings_of(model, x.int()) == sentences("its weight is torch.int32")
    to_integers(model, torch.int64)
    assert warnings_of(model, x) == []
    layer = as_converted(torch.nn.Linear(6, 8))
    sparse = torch.randn(2, 6).to_sparse()
    (text,) = warnings_of(layer, sparse)
    assert text == (
        "torch_tiled: the model (Linear) computes by torch, since its input is torch.sparse_coo"
    )


def test_copies_and_replicas():
    """A copy is another layer; the replicas that DataParallel makes for each call are the same."""
    model, x = fallen_back()
    assert warnings_of(model[0], x) == sentences(INTEGERS)[:1]
    replica = model[0]._replicate_for_data_parallel()
    replica.weight, replica.bias = model[0].weight.clone(), model[0].bias.clone()
    assert warnings_of(replica, x) == []
    assert warnings_of(copy.deepcopy(model)[0], x) == sentences(INTEGERS)[:1]


def test_warnings_can_be_filtered():
    model, x = fallen_back()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # a warning raised as an error does not count as given
            with pytest.raises(UserWarning, match="0 .Linear. computes by torch"):
                model(x)
        warnings.filterwarnings("ignore", message="torch_tiled: ")
        model(x)


def test_threads_say_it_once(monkeypatch):
    model, x = fallen_back()
    ready, warn = threading.Barrier(8), converted.warn

    def slowly(text):
        time.sleep(0.05)
        warn(text)

    monkeypatch.setattr(converted, "warn", slowly)

    def work():
        ready.wait()
        for _ in range(5):
            model(x)

    threads = [threading.Thread(target=work) for _ in range(8)]
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(texts_of(record)) == sorted(sentences(INTEGERS))


def test_a_compiled_model_says_it_where_it_is_traced():
    torch.compiler.reset()
    model, x = fallen_back()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert warnings_of(compiled, x) == sentences(INTEGERS)
    assert warnings_of(compiled, x) == warnings_of(model, x) == []
    assert_close(compiled(x), model(x))
    exported, x = fallen_back()
    assert warnings_of(torch.export.export, exported, (x,)) == sentences(INTEGERS)


def test_a_nested_input_computes_by_torch():
    model = as_converted(small_model())
    parts = [torch.randn(n, 6) for n in (2, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.warns(UserWarning, match="computes by torch, since its input is a nested tensor"):
        result = model[0](nested)
    assert_close(list(result.unbind()), [model[0](part) for part in parts])


@pytest.mark.parametrize("compiled", [False, True])
def test_strict_layers_raise(compiled):
    torch.compiler.reset()
    (lenient, x), (model, _) = fallen_back(), fallen_back(strict=True)
    if compiled:
        lenient = torch.compile(lenient, backend="eager", fullgraph=True)
        model = torch.compile(model, backend="eager", fullgraph=True)
    warnings_of(lenient, x)  # its graph must not serve the other model
    with pytest.raises(RuntimeError, match="0 .Linear. .*int64, which strict=True forbids"):
        model(x)


def test_other_errors_are_torch_tiled_s():
    model = as_converted(small_model())
    with pytest.raises(RuntimeError, match="tiled::linear"):
        model(torch.randn(2, 7))
