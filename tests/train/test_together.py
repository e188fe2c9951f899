"""Networks of several panels that are trained as one."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import build_decoder, make_loss
from fewer.nn.decoder import DecoderStack, SkipConnected, skip_connected, without_norms
from fewer.train import TrainingConfig
from fewer.train.network import MeanSquares, train_decoder, train_decoders
from fewer.train.optimize import KeepBestMembers
from fewer.train.training_data import prepare


def prepared(rows, loss="mse", targets=None, out=None, **options):
    source = array_source(rows)
    config = TrainingConfig(**{"k": 3, "decoder": (8,), "device": "cpu"} | options)
    loss = make_loss(loss, smoothing=0.1)
    return prepare(source, moments(source), config, loss, 0, targets, out)


def panels(*lists):
    return [np.array(one) for one in lists]


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("training", [True, False])
def test_a_stack_computes_what_its_members_do(norm, training):
    torch.manual_seed(0)
    decoders = [build_decoder((5, 4), 3, 6, norm=norm) for _ in range(4)]
    stack = DecoderStack(copy.deepcopy(decoders)).train(training)
    x = torch.randn(9, 4, 3)
    for _ in range(2):  # twice: running means and variances move with each batch
        found = stack(x)
        for at, decoder in enumerate(decoders):
            torch.testing.assert_close(found[at], decoder.train(training)(x[:, at]))
    for member, decoder in zip(stack.members(), decoders, strict=True):
        torch.testing.assert_close(
            member.eval()(x[:, 0]), decoder.eval()(x[:, 0]), rtol=1e-5, atol=1e-6
        )


def test_a_stack_with_skip_connections_computes_what_its_members_do():
    torch.manual_seed(0)
    stack = DecoderStack([build_decoder((5, 4), 3, 6, norm="layer") for _ in range(3)]).eval()
    x = torch.randn(9, 3, 3)
    before = stack(x)
    stack.add_skip()
    torch.testing.assert_close(stack(x), before)
    with torch.no_grad():
        stack.last.weight[:2] += torch.randn(2, 6, 7)
    members = stack.members()
    kinds = [SkipConnected, SkipConnected, nn.Sequential]  # the last one has weights of zero
    assert [type(member) for member in members] == kinds
    for at, member in enumerate(members):
        torch.testing.assert_close(member(x[:, at]), stack(x)[at])


def test_a_norm_before_a_skip_connection_becomes_part_of_the_layer_before_it():
    decoder = skip_connected(build_decoder((5,), 3, 6, norm="batch"))
    torch.nn.init.normal_(decoder[-1].weight)
    plain = without_norms(decoder.eval())
    assert len(plain) == 3
    x = torch.randn(7, 3)
    torch.testing.assert_close(plain(x), decoder(x))


def test_a_norm_becomes_part_of_the_layer_before_it():
    torch.manual_seed(0)
    decoder = build_decoder((5, 4), 3, 6, norm="batch", dropout=0.2)
    for _ in range(20):
        decoder(torch.randn(30, 3) * 4 + 1)
    plain = without_norms(decoder.eval())
    assert [type(layer) for layer in plain] == [
        nn.Linear,
        nn.LeakyReLU,
        nn.Linear,
        nn.LeakyReLU,
        nn.Linear,
    ]
    x = torch.randn(7, 3)
    torch.testing.assert_close(plain(x), decoder(x))


def test_panels_are_trained_as_if_alone(digits):
    data = prepared(digits[0][:300], refit_epochs=12)
    chosen = panels([20, 34, 43], [10, 20, 30], [5, 12, 50])
    together = train_decoders(data, chosen, seed=3)
    x = torch.from_numpy(digits[1])
    for columns, decoder in zip(chosen, together, strict=True):
        alone = train_decoders(data, [columns], seed=3)[0]
        torch.testing.assert_close(
            decoder(x[:, columns]), alone(x[:, columns]), rtol=1e-3, atol=1e-3
        )
        assert decoder.known.tolist() == columns.tolist()


def test_panels_of_different_sizes(digits):
    data = prepared(digits[0][:200], refit_epochs=3)
    chosen = panels([20, 34, 43], [10, 20, 30, 40], [5, 12, 50], [7])
    found = train_decoders(data, chosen, seed=0)
    assert [len(decoder.fill) for decoder in found] == [3, 4, 3, 1]


def test_a_single_network_of_the_same_seed_is_the_same(digits):
    data = prepared(digits[0][:200], refit_epochs=3)
    source = array_source(digits[0][:200])
    columns = np.array([20, 34, 43])
    one = train_decoders(data, [columns], seed=0)[0]
    other = train_decoder(source, moments(source), columns, data.config, make_loss("mse"), 0)
    x = torch.from_numpy(digits[1][:, columns])
    torch.testing.assert_close(one(x), other(x), rtol=0, atol=0)


@pytest.mark.parametrize("loss", ["mae", "huber"])
def test_other_losses(digits, loss):
    data = prepared(digits[0][:300], loss, refit_epochs=5)
    found = train_decoders(data, panels([20, 34, 43], [10, 20, 30]), seed=0)
    assert all(torch.isfinite(one(torch.rand(4, 3))).all() for one in found)


def test_missing_values_do_not_count(digits):
    rows = digits[0][:300].copy()
    rows[::3, 40] = np.nan
    found = train_decoders(prepared(rows, refit_epochs=5), panels([20, 34, 43], [9, 20, 30]), 0)
    assert all(torch.isfinite(one(torch.rand(4, 3))).all() for one in found)


def test_classes_are_calibrated():
    """A quarter of the labels is wrong: the mean probability is about the accuracy."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 4))
    y = torch.from_numpy(((x[:, 0] > 0) ^ (random.random(4000) < 0.25)).astype(np.int64))
    data = prepared(x[:2000], "cross_entropy", y[:2000], 2, k=2, norm="batch")
    decoder = train_decoders(data, panels([0, 1]), seed=0)[0]
    chance = decoder(torch.from_numpy(x[2000:, :2])).detach()
    accuracy = (chance.argmax(1) == y[2000:]).double().mean()
    assert accuracy > 0.7
    assert abs(chance.amax(1).mean() - accuracy) < 0.08  # 200 held-out rows


def test_the_last_layer_is_solved_exactly():
    """With as many hidden units as needed, a linear map is found to rounding."""
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 3))
    rows = np.hstack([x, np.maximum(x, 0) @ random.normal(size=(3, 4))])
    data = prepared(rows, decoder=(32,), refit_epochs=60)
    decoder = train_decoders(data, panels([0, 1, 2]), seed=0)[0]
    assert decoder.tuned is not None
    with torch.no_grad():
        error = (decoder(torch.from_numpy(x)) - torch.from_numpy(rows)).square().mean()
    assert float(error) < 0.002 * rows.var()


def test_the_last_layer_takes_the_measured_values_too():
    """A linear map of more outputs than two hidden units could tell."""
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 3))
    rows = np.hstack([x, x @ random.normal(size=(3, 6))])
    kept, plain = (
        train_decoders(prepared(rows, decoder=(2,), keep_measured=keep), panels([0, 1, 2]), 0)[0]
        for keep in (True, False)
    )
    truth = torch.from_numpy(rows)
    with torch.no_grad():
        errors = [float((one(truth[:, :3]) - truth).square().mean()) for one in (kept, plain)]
    assert isinstance(kept.net, SkipConnected)
    assert errors[0] < 1e-6 * rows.var()
    assert not isinstance(plain.net, SkipConnected)  # as in the paper
    assert errors[1] > 0.05 * rows.var()


def test_the_gradient_of_mean_squares():
    torch.manual_seed(0)
    output = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randn(3, 4, dtype=torch.float64)
    weight = torch.ones(2, 1, 4, dtype=torch.float64)
    weight[0, 0, 2] = 0
    found = MeanSquares.apply(output, target, weight)
    plain = ((output - target) * weight).square().mean((1, 2))
    torch.testing.assert_close(found, plain)
    ours = torch.autograd.grad(found.sum(), output)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(plain.sum(), output)[0])


def test_each_member_keeps_its_own_best_state():
    stack = DecoderStack([build_decoder((2,), 1, 1) for _ in range(2)])
    best = KeepBestMembers(patience=2)
    seen = []
    for epoch, losses in enumerate([[3.0, 3.0], [2.0, 4.0], [5.0, 1.0], [9.0, 9.0]], start=1):
        with torch.no_grad():
            stack.last.bias.fill_(epoch)
        seen.append(best.seen_members(torch.tensor(losses), stack, [epoch, epoch]))
    assert best.epochs == [2, 3]
    assert seen == [[False, False], [False, False], [False, False], [True, False]]
    best.restore_members(stack, [True, False])
    assert stack.last.bias.flatten().tolist() == [2.0, 4.0]
    best.restore(stack)
    assert stack.last.bias.flatten().tolist() == [2.0, 3.0]


def test_a_member_that_stalls_does_not_change_the_others():
    """Noise stalls at once, a smooth function does not; each is trained as if alone."""
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 4))
    rows = np.hstack([x, np.sin(2 * x[:, :2]), random.normal(size=(120, 2))])
    data = prepared(rows, k=2, patience=4)
    chosen = panels([0, 1], [6, 7], [2, 3])
    together = train_decoders(data, chosen, seed=0)
    assert len({decoder.epochs for decoder in together}) > 1
    for columns, decoder in zip(chosen, together, strict=True):
        alone = train_decoders(data, [columns], seed=0)[0]
        assert decoder.epochs == alone.epochs
        found, other = (one(torch.from_numpy(rows[:, columns])) for one in (decoder, alone))
        torch.testing.assert_close(found, other, rtol=1e-3, atol=1e-3)


def test_dropout_is_reproducible(digits):
    y = torch.from_numpy((digits[0][:300, 20] > 0.5).astype(np.int64))
    options = {"norm": "batch", "dropout": 0.3, "refit_epochs": 4}
    data = prepared(digits[0][:300], "cross_entropy", y, 2, **options)
    x = torch.from_numpy(digits[1][:, :3])
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # the caller's random numbers do not matter
        pair = train_decoders(data, panels([20, 34, 43], [10, 20, 30]), seed=0)
        found.append([one(x) for one in pair])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])
