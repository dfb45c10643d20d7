"""torch_tiled.invariance, which names the first operator that depends on the batch."""

import dataclasses
import random

import pytest
import torch
from helpers.invariance import Block, Call, Centred, Noisy, linear, named, results
from torch import nn

from torch_tiled import invariance
from torch_tiled.invariance import _ADVICE, _advice, _advice_of_layer


def test_a_model_that_is_invariant(device):
    model = nn.Sequential(linear(), nn.ReLU(), nn.LayerNorm(16)).to(device)
    report = invariance(model, torch.randn(5, 16, device=device))
    assert report.equal and report.first is None and report.different == ()
    assert report.samples == 5 and report.not_compared == ()
    assert results(report) == dict.fromkeys(("", "0", "1", "2"), "equal")
    assert [row.kind for row in report.modules] == ["Sequential", "Linear", "ReLU", "LayerNorm"]
    assert "The outputs of 5 samples have the same bits alone and in batches." in str(report)


def test_the_batches():
    report = invariance(nn.ReLU(), torch.randn(5, 2))
    assert report.batches == (
        "sample 0 alone, again",
        *(f"a batch of {size}" for size in (2, 3, 5)),
        "a batch of 5, reversed",
    )
    seen = []
    invariance(lambda x: seen.append(x.tolist()) or x, torch.arange(5), sizes=[2])
    runs = [*([i] for i in range(5)), [0], [0, 1], [2, 3], [3, 4], [4, 3, 2, 1, 0]]
    assert seen == [run for run in runs for _ in range(2)]  # by itself, and watched


def test_a_mean_over_the_batch(device):
    model = nn.Sequential(linear(), Block(Centred()), nn.ReLU()).to(device)
    report = invariance(model, torch.randn(4, 16, device=device))
    assert not report.equal and named(report) == ("1.inner", "aten.mean")
    assert report.first.kind == "Centred" and report.first.batch == "a batch of 2"
    assert report.first.sample == 0 and report.first.relative > 0.1
    assert "over the batch" in report.first.advice
    assert report.different == tuple(report.batches[1:])
    differs = dict.fromkeys(("", "1", "1.inner", "2"), "differs")
    assert results(report) == differs | {"0": "equal"}
    assert "First to differ: aten.mean in 1.inner (Centred), sample 0 in a batch of 2" in str(
        report
    )


def test_noise_deep_in_a_model_has_its_module_operator_and_size(device):
    """The factor is a number in Python, so the product has other inputs, and the module is named
    by what it calls; noise of an operator's own is below."""
    blocks = [Block(nn.Sequential(linear(), nn.Tanh())) for _ in range(3)]
    blocks[1].inner.append(Noisy())
    model = nn.Sequential(*blocks).to(device)
    report = invariance(model, torch.randn(4, 16, device=device))
    assert named(report) == ("1.inner.2", "aten.mul")
    assert report.first.relative == pytest.approx(2**-20, rel=0.1)
    assert {name for name, result in results(report).items() if result == "differs"} == {
        *("", "1", "1.inner", "1.inner.2"),
        *(name for name in results(report) if name.startswith("2")),
    }


@pytest.fixture
def noisy_operator():
    """An operator that has other bits in a batch of more than two rows."""
    with torch.library._scoped_library("invariance_test", "FRAGMENT") as library:
        library.define("noisy(Tensor x) -> Tensor")

        def noisy(x):
            return x * (1 + 2**-20 * (len(x) > 2))

        library.impl("noisy", noisy, "CompositeExplicitAutograd")
        yield torch.ops.invariance_test.noisy


def test_an_operator_that_depends_on_the_size(noisy_operator, device):
    model = nn.Sequential(nn.ReLU(), Block(Call(noisy_operator)), nn.Tanh())
    report = invariance(model, torch.randn(4, 16, device=device))
    assert named(report) == ("1.inner", "invariance_test.noisy")
    assert report.first.batch == "a batch of 3" and report.first.advice.startswith("Compute it")
    assert report.different == ("a batch of 3", "a batch of 4", "a batch of 4, reversed")
    assert invariance(model, torch.randn(4, 16, device=device)[:2]).equal
    assert invariance(model, torch.randn(4, 16, device=device), sizes=[2]).different == (
        "a batch of 4, reversed",
    )


def test_the_earliest_operator_is_named(noisy_operator):
    """A mean that differs in smaller batches comes after it."""
    model = nn.Sequential(Call(noisy_operator), Centred())
    assert named(invariance(model, torch.randn(4, 16))) == ("0", "invariance_test.noisy")


def test_an_operator_with_other_inputs_is_not_named():
    """Batch normalization after the mean would differ by itself, too."""
    model = nn.Sequential(Centred(), nn.BatchNorm1d(3))
    assert named(invariance(model, torch.randn(4, 3, 5))) == ("0", "aten.mean")
    assert named(invariance(model[1:], torch.randn(4, 3, 5)))[1] == "aten.native_batch_norm"


def test_a_model_that_is_not_deterministic():
    model = Call(lambda x: x + random.random())
    assert invariance(model, torch.randn(3, 2)).different[0] == "sample 0 alone, again"


def test_advice_on_a_layer_is_of_the_table_of_functions(monkeypatch):
    """The statement does not cover it, so the advice is not to enter the statement."""
    for layer in (nn.GRU(2, 2), nn.RNN(2, 2), nn.LSTMCell(2, 2)):
        assert _advice_of_layer(layer).startswith("Its products are inside of it; write the cell")
    assert "zeros between the pixels" in _advice_of_layer(nn.ConvTranspose1d(2, 2, 2))
    assert "call torch.nn.functional.embedding" in _advice_of_layer(nn.EmbeddingBag(2, 2)).lower()

    class GRU(nn.Module):  # of another library
        pass

    for layer in (nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm1d(2), nn.Identity(), GRU(), None):
        assert _advice_of_layer(layer) is None
    monkeypatch.setattr(nn.ConvTranspose1d, "forward", lambda self, x: x - x.mean(0))
    layer = nn.ConvTranspose1d(2, 2, 2)
    assert invariance(layer, torch.randn(8, 2, 5)).first.advice == _advice_of_layer(layer)


def test_advice_is_about_the_device():
    for name in ("aten.addmm", "aten.bmm", "aten.gelu"):
        assert _advice(name, on_cpu=False) != _advice(name, on_cpu=True)
    for name in ("aten.mean", "aten._softmax", "aten.convolution", "aten.addmm", "tiled.matmul"):
        assert "torch_tiled.invariant()" in _advice(name, on_cpu=True)
    assert "torch_tiled.convert(model)" in _advice("aten.addmm", on_cpu=False)
    assert _advice("tiled._row_sum", on_cpu=False).endswith("by definition.")
    assert _advice("aten.histc, aten._grouped_mm", on_cpu=False) == _advice(
        "aten._grouped_mm", False
    )
    assert _advice("aten.bernoulli_", True) == _advice("aten.native_dropout", True)
    assert _advice("mine.addmm", True) == _advice("aten.unheard_of", True)


def test_names_in_the_table_of_advice_are_operators():
    names = [name for names in _ADVICE for name in names.split()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(torch.ops.aten, name)] == []


def test_batch_norm_in_training(device):
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)).to(device)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    report = invariance(model, torch.randn(4, 3, 7, device=device))
    assert report.first.module == "1" and "eval()" in report.first.advice
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert model.training and model[1].num_batches_tracked == 0


def test_batch_norm_that_takes_no_sample_alone():
    model = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match="more than 1 value") as caught:
        invariance(model, torch.randn(4, 4))
    assert "sample 0 alone" in caught.value.__notes__[0] and "eval()" in caught.value.__notes__[0]
    assert not nn.modules.module._has_any_global_hook()
    assert model.num_batches_tracked == 0


def test_dropout_in_training(device):
    model = nn.Sequential(linear(), nn.Dropout()).to(device)
    x = torch.randn(4, 16, device=device)
    report = invariance(model, x)
    assert report.first.module == "1" and "eval()" in report.first.advice
    assert report.different[0] == "a batch of 2"  # every run has the same random numbers
    assert invariance(model.eval(), x).equal


def test_what_random_numbers_overwrite_does_not_count(device):
    """Dropout draws them into fresh memory."""

    def drop(x):
        mask = torch.arange(len(x), device=x.device)[:, None].expand(-1, 8).float()
        return x * mask.bernoulli_(0.5)

    report = invariance(nn.Sequential(Call(drop)), torch.randn(4, 8, device=device))
    assert named(report) == ("0", "aten.bernoulli_")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    others: tuple


@pytest.mark.parametrize(
    "give",
    [
        lambda x, y: (x, y),
        lambda x, y: {"x": x, "others": [None, {"y": y}]},
        lambda x, y: Output(x, (y,)),
    ],
    ids=["tuple", "dict", "dataclass"],
)
def test_outputs_of_several_tensors(give):
    shifted = Call(lambda x: give(x, x - x.mean()))
    report = invariance(nn.Sequential(nn.ReLU(), shifted), torch.randn(3, 4))
    assert not report.equal and named(report) == ("1", "aten.mean")
    assert results(report)["1"] == "differs"
    assert invariance(Call(lambda x: give(x, 2 * x)), torch.randn(3, 4)).equal


def test_inputs_of_several_arguments():
    def forward(x, scale, *, mask, table):
        assert len(x) == len(scale) == len(mask["rows"]) and table.shape == (3, 3)
        return (x + scale) * mask["rows"] @ table

    x, rows, table = torch.randn(3, 3), torch.ones(3, 1), torch.eye(3)
    arguments = {"x": x, "scale": rows, "mask": {"rows": rows}}
    assert invariance(Call(forward), arguments, shared={"table": table}).equal
    assert invariance(lambda x, y: x * y, (x, torch.tensor(2.0))).equal
    assert invariance(lambda x, y: x + y, [torch.randn(4, 3), torch.ones(3)]).equal


def test_the_batch_in_another_dimension():
    model = nn.GRU(8, 8).double()
    x = torch.randn(5, 3, 8).double()
    report = invariance(model, x, dim=1)
    assert report.samples == 3 and report.first is None or report.first.operator
    assert invariance(lambda x: x.cumsum(0), x, dim=1).equal


def test_channels_last_stays():
    def forward(x):
        assert x.is_contiguous(memory_format=torch.channels_last)
        return x * 2

    x = torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last)
    assert invariance(forward, x).equal


def test_nan_is_equal_if_its_bits_are():
    def other_nan(x):
        bits = torch.full((len(x), 2), 0x7FC00000 + len(x), dtype=torch.int32)
        return x * bits.view(torch.float32)[:, :1].nan_to_num(), bits.view(torch.float32)

    x = torch.tensor([[1.0, torch.nan], [torch.nan, torch.inf], [0, -0.0]])
    assert invariance(nn.ReLU(), x).equal
    assert not invariance(other_nan, x).equal
    assert not invariance(lambda x: torch.zeros_like(x) * (1.5 - len(x)), x).equal  # 0 and -0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.int8, torch.bool])
def test_dtypes(dtype, device):
    x = torch.randint(2, (3, 5), device=device).to(dtype)
    assert invariance(lambda x: (x, x.roll(1, 1)), x).equal
    report = invariance(lambda x: x ^ (len(x) == 2) if dtype == torch.bool else x + len(x), x)
    assert not report.equal


def test_rows_folded_into_one_dimension():
    """(batch * tokens, columns) and (tokens * batch, columns) are found both."""
    for dims in ((0, 1), (1, 0)):

        def fold(x, dims=dims):
            y = x.permute(*dims, 2).reshape(-1, x.shape[2]).abs()
            return torch.ops.aten.mul(y, y).view(*(x.shape[d] for d in dims), -1).permute(*dims, 2)

        report = invariance(fold, torch.randn(4, 3, 5))
        assert report.equal and report.not_compared == ()
    report = invariance(lambda x: x.transpose(0, 1).reshape(-1, 5).abs(), torch.randn(4, 3, 5))
    assert report.equal


def test_rows_that_are_not_found():
    """An operator on rows in an order of their own is not compared, and not at fault."""
    shuffle = Call(lambda x: x.view(-1)[torch.arange(x.numel() - 1, -1, -1)].exp())

    def back(x):
        return x.flip(0).view(-1, 6)

    model = nn.Sequential(shuffle, Call(back))
    report = invariance(model, torch.randn(4, 6, dtype=torch.float64))
    assert report.equal and report.first is None
    assert report.not_compared == ("aten.exp in 0 (Call)",)
    assert results(report) == {"": "equal", "0": "not compared", "1": "equal"}
    assert "Not compared: aten.exp in 0 (Call)" in str(report)


def test_a_module_whose_operators_are_not_found_is_named():
    def forward(x):
        y = x.view(-1).flip(0).contiguous().exp() * (1 + 2**-20 * (len(x) > 1))
        return y.flip(0).view(-1, 6)

    model = nn.Sequential(nn.Tanh(), Call(forward), nn.ReLU())
    report = invariance(model, torch.randn(4, 6, dtype=torch.float64), sizes=[2])
    assert named(report) == ("1", "one of aten.exp, aten.mul")
    assert results(report) == {"": "differs", "0": "equal", "1": "differs", "2": "differs"}
    assert report.first.relative == pytest.approx(2**-20, rel=0.1)


def test_other_operators_in_a_batch():
    def forward(x):
        return torch.mul(x, x).relu() if len(x) == 1 else torch.pow(x, 2.0001).relu()

    report = invariance(nn.Sequential(nn.ReLU(), Call(forward)), torch.randn(4, 6))
    assert named(report) == ("1", "aten.mul alone, aten.pow in the batch")
    equal = Call(lambda x: x + x if len(x) == 1 else x * 2)
    report = invariance(equal, torch.randn(4, 6))
    assert report.equal and report.not_compared == ("aten.mul in the model (Call)",)


def test_places_and_counts_are_no_differences():
    """Indices are those of a place in the batch, and what they pick is a sample's."""

    def last(x):
        return x[torch.arange(len(x)), (x > 0).sum(1).clamp(max=3)].tanh()

    assert invariance(last, torch.randn(4, 4)).first is None


def test_a_model_that_differs_only_if_nothing_watches_it():
    """As a compiled model may, which torch.compile leaves to its eager operators."""

    def forward(x):
        is_watched = torch._C._len_torch_dispatch_stack() > 0
        return x if is_watched or len(x) == 1 else x * 2

    report = invariance(nn.Sequential(Call(forward)), torch.randn(3, 4))
    assert not report.equal and report.first is None
    assert results(report) == {"": "differs", "0": "equal"}
    assert "No operator was found" in str(report)


def test_a_number_of_the_batch():
    """It is no tensor's, so the advice is about the number."""
    report = invariance(nn.Sequential(linear(), Noisy()), torch.randn(3, 16), sizes=[2])
    assert named(report) == ("1", "aten.mul") and report.not_compared == ()
    assert report.first.advice == (
        f"It was called with the number {1 + 2**-20}, and for the sample alone with 1.0."
    )


def test_a_module_that_moves_or_rounds_rows():
    for function in (
        lambda x: x.roll(1, 0),
        lambda x: x[:1].expand_as(x),
        lambda x: torch.cat([x[:1], x[:-1]]),
        lambda x: x[:, torch.arange(16).roll(len(x))],
        lambda x: x.bfloat16().float() if len(x) > 2 else x,
        lambda x: torch.from_numpy(x.numpy() + len(x)),
    ):
        report = invariance(nn.Sequential(linear(), Call(function), nn.ReLU()), torch.randn(4, 16))
        assert named(report) == ("1", "") and report.first.advice.startswith("It moves or rounds")
        assert "First to differ: 1 (Call), sample" in str(report)
        assert list(results(report).values())[1:3] == ["equal", "differs"]


def test_a_module_that_writes_into_its_input():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()

        def forward(self, x):
            x += self.inner(x) * (1 + 1e-3 * len(x))
            return x

    report = invariance(nn.Sequential(linear(), Residual(), linear()), torch.randn(4, 16))
    assert named(report) == ("1", "aten.mul")
    add = Call(lambda x: x.add_(1e-3 * len(x)))
    report = invariance(nn.Sequential(linear(), add, nn.ReLU()), torch.randn(4, 16))
    assert named(report) == ("1", "aten.add_")


def test_integers_between_modules_are_compared():
    choose = Call(lambda x: (x.argmax(-1) + (len(x) > 2)) % 16)
    model = nn.Sequential(linear(), choose, nn.Embedding(16, 4))
    report = invariance(model, torch.randn(4, 16))
    assert results(report)["1"] == "differs" and report.first.module == "1"
    report = invariance(lambda x: x + (len(x) > 2), torch.randint(9, (4, 5)))
    assert not report.equal and named(report) == ("", "aten.add")


def test_what_is_padded_to_a_fixed_size_is_not_at_fault():
    pad = Call(lambda x: nn.functional.pad(x, (0, 0, 0, -len(x) % 8)).tanh()[: len(x)])
    model = nn.Sequential(linear(), pad, nn.ReLU())
    report = invariance(model, torch.randn(4, 16))
    assert report.equal and report.first is None and results(report)["1"] == "equal"
    model.insert(2, Centred())
    assert named(invariance(model, torch.randn(4, 16))) == ("2", "aten.mean")


def test_a_difference_inside_that_the_outputs_do_not_have():
    report = invariance(lambda x: (x.mean(0) * 0).isnan() | (x > 0), torch.randn(4, 3))
    assert report.equal and named(report) == ("", "aten.mean")
    assert "Inside, and not in the outputs, the first to differ: aten.mean" in str(report)


def test_outputs_that_are_no_tensors():
    report = invariance(lambda x: {"x": x, "n": (len(x), {3})}, torch.randn(3, 2))
    assert report.equal
    assert report.not_compared == ("an output of type int", "an output of type set")
    assert not invariance(lambda x: (x, (x * len(x)).numpy()), torch.randn(3, 2)).equal
    reordered = invariance(
        lambda x: {"a": x, "b": x + 1} if len(x) == 1 else {"b": x + 1, "a": x}, torch.randn(3, 2)
    )
    assert reordered.equal


def test_nested_tensors_inside():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.arange(7) >= torch.tensor([7, 3, 5])[:, None]
    inputs = {"src": torch.randn(3, 7, 16), "src_key_padding_mask": mask}
    report = invariance(encoder, inputs, sizes=[])
    assert report.samples == 3 and report.modules[0].name == ""


def test_a_buffer_that_is_resized():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kv", torch.ones(1, 4))

        def forward(self, x):
            return x + self.kv.resize_(len(x), 4).zero_()

    model = Cache()
    assert invariance(model, torch.randn(3, 4)).equal
    assert model.kv.tolist() == [[1.0] * 4]


def test_a_sample_that_differs_from_itself():
    report = invariance(lambda x: x + random.random(), torch.randn(3, 2))
    assert str(report).startswith("Sample 0 alone differs from itself")


def test_a_scripted_module():
    report = invariance(torch.jit.script(nn.Sequential(nn.ReLU())), torch.randn(3, 4))
    assert report.equal
