"""Decoders and the scaling around them."""

import pytest
import torch
from torch import nn

from fewer.errors import InputError, TypeInputError
from fewer.nn import MeasuredDecoder, build_decoder
from fewer.nn.decoder import NormStack


class Fixed(nn.Module):
    """A map that training leaves as it is, kept as a plain tensor or as a buffer."""

    def __init__(self, k, out, *, buffer=False):
        super().__init__()
        if buffer:
            self.register_buffer("fixed", torch.ones(k, out), persistent=False)
        else:
            self.fixed = torch.ones(k, out)
        self.gain = nn.Parameter(torch.ones(out))

    def forward(self, x):
        return x @ self.fixed * self.gain


@pytest.mark.parametrize(
    ("spec", "options", "kinds"),
    [
        ("linear", {}, [nn.Linear]),
        ((), {}, [nn.Linear]),
        (8, {}, [nn.Linear, nn.LeakyReLU, nn.Linear]),
        ((8, 6), {}, [nn.Linear, nn.LeakyReLU, nn.Linear, nn.LeakyReLU, nn.Linear]),
        ((8,), {"norm": "batch"}, [nn.Linear, nn.BatchNorm1d, nn.LeakyReLU, nn.Linear]),
        ((8,), {"norm": "layer"}, [nn.Linear, nn.LayerNorm, nn.LeakyReLU, nn.Linear]),
        (
            (8,),
            {"dropout": 0.5, "activation": "tanh"},
            [nn.Linear, nn.Tanh, nn.Dropout, nn.Linear],
        ),
        (lambda k, out: nn.Bilinear(k, k, out) if k > 9 else nn.Linear(k, out), {}, [nn.Linear]),
    ],
)
def test_layers_are_as_requested(spec, options, kinds):
    decoder = build_decoder(spec, 3, 5, **options)
    assert [type(m) for m in decoder.modules() if not isinstance(m, nn.Sequential)] == kinds
    assert decoder(torch.zeros(2, 3)).shape == (2, 5)


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        ("deep", {}, InputError, "decoder='deep' is not valid"),
        ((0,), {}, TypeInputError, "whole numbers of at least 1"),
        ((7.5,), {}, TypeInputError, "whole numbers of at least 1"),
        (0, {}, TypeInputError, "decoder=0: hidden widths"),
        ((8,), {"activation": "step"}, InputError, "activation='step' is not valid"),
        ((8,), {"dropout": 1}, InputError, "dropout=1 must be"),
        ((8,), {"norm": "group"}, InputError, "norm='group' is not valid"),
        (lambda k, out: nn.Linear(k, 4), {}, InputError, r"gives? \(2, 5\): make its last layer 5"),
        (lambda k, out: nn.Linear(9, out), {}, InputError, "cannot take 3 inputs"),
        (lambda k, out: "net", {}, TypeInputError, "returned str"),
        (nn.Linear(3, 5), {}, TypeInputError, r"decoder=Linear\(\.\.\.\) is a module; pass a fun"),
        ((8,), {"dropout": "a"}, TypeInputError, "dropout='a' must be a number of at least 0"),
        ((8,), {"dropout": None}, TypeInputError, "dropout=None must be a number"),
        ((8,), {"activation": ["relu"]}, InputError, r"activation=\['relu'\] is not valid"),
        ((8,), {"norm": ["batch"]}, InputError, r"norm=\['batch'\] is not valid"),
        (
            nn.LSTM,
            {},
            TypeInputError,
            r"forward returned tuple; return one tensor of shape \(n, 5\)",
        ),
        (Fixed, {}, InputError, "not in float64.*register its tensors"),
    ],
)
def test_bad_input_is_named(spec, options, error, message):
    with pytest.raises(error, match=message):
        build_decoder(spec, 3, 5, **options)


def test_probing_a_decoder_does_not_move_its_statistics():
    norm = nn.BatchNorm1d(3)
    build_decoder(lambda k, out: nn.Sequential(norm, nn.Linear(k, out)), 3, 5)
    assert norm.num_batches_tracked == 0
    assert norm.training


def test_trying_a_decoder_in_float64_leaves_it_as_it_was():
    decoder = build_decoder(lambda k, out: Fixed(k, out, buffer=True), 3, 5)
    assert {part.dtype for part in (decoder.fixed, decoder.gain)} == {torch.float32}

    def tied(k, out):
        first, second = nn.Linear(k, k), nn.Linear(k, k)
        second.weight = first.weight
        return nn.Sequential(first, second, nn.Linear(k, out))

    net = build_decoder(tied, 3, 5)
    assert net[0].weight is net[1].weight


def test_measured_values_are_scaled_and_put_in_node_order():
    decoder = MeasuredDecoder(
        nn.Identity(),
        fill=torch.tensor([10.0, 20.0]),
        center=torch.tensor([10.0, 20.0]),
        scale=torch.tensor([2.0, 4.0]),
        order=torch.tensor([1, 0]),
        out_center=torch.tensor([100.0, 200.0]),
        out_scale=torch.tensor(3.0),
    )
    # columns become (12-10)/2 = 1 and (16-20)/4 = -1; node 0 reads column 1
    assert decoder(torch.tensor([[12.0, 16.0]])).tolist() == [[97.0, 203.0]]
    assert decoder(torch.tensor([[torch.nan, torch.nan]])).tolist() == [[100.0, 200.0]]


def test_norms_of_a_stack_as_one_kernel_are_the_plain_ones():
    torch.manual_seed(0)
    layers = [nn.BatchNorm1d(5) for _ in range(3)]
    for layer in layers:
        nn.init.normal_(layer.weight)
    plain, fused = NormStack(layers), NormStack(layers)
    x = torch.randn(3, 40, 5)
    for training in (True, False):
        plain.train(training)
        fused.train(training)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        wanted, found = plain(inputs[0]), fused._at_once(inputs[1])
        torch.testing.assert_close(found, wanted)
        wanted.pow(2).sum().backward()
        found.pow(2).sum().backward()
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, atol=1e-4, rtol=1e-4)
    for name, part in plain.state_dict().items():
        torch.testing.assert_close(fused.state_dict()[name], part)
