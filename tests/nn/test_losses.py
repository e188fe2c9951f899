"""Losses against their formulas, with and without missing entries."""

import pytest
import torch

from fewer.errors import InputError
from fewer.nn import LOSSES, make_loss

OUTPUT = torch.tensor([[0.5, -1.0], [3.0, 0.2]])
TARGET = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
FORMULAS = {
    "mse": lambda o, t: (o - t) ** 2,
    "mae": lambda o, t: (o - t).abs(),
    "huber": lambda o, t: torch.where((o - t).abs() < 1, (o - t) ** 2 / 2, (o - t).abs() - 0.5),
    "bce": lambda o, t: -t * torch.sigmoid(o).log() - (1 - t) * (1 - torch.sigmoid(o)).log(),
    "poisson": lambda o, t: o.exp() - t * o,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_means_and_masked_means(name):
    loss, each = make_loss(name), FORMULAS[name](OUTPUT, TARGET)
    assert loss(OUTPUT, TARGET).item() == pytest.approx(each.mean().item(), rel=1e-5)
    seen = torch.tensor([[True, False], [True, True]])
    expected = each[seen].mean().item()
    assert loss(OUTPUT, TARGET, seen).item() == pytest.approx(expected, rel=1e-5)


def test_cross_entropy_of_classes():
    value = make_loss("cross_entropy")(OUTPUT, torch.tensor([0, 1]))
    assert value.item() == pytest.approx(
        -torch.log_softmax(OUTPUT, dim=1)[[0, 1], [0, 1]].mean().item(), rel=1e-5
    )
    assert {*FORMULAS, "cross_entropy"} == set(LOSSES)


@pytest.mark.parametrize("name", ["mse", "mae", "huber"])
def test_rescaled_targets_give_the_rescaled_loss(name):
    loss = make_loss(name)
    scaled = loss.in_units_of(4.0)(OUTPUT / 4, TARGET / 4) * 4.0**loss.degree
    assert scaled.item() == pytest.approx(loss(OUTPUT, TARGET).item(), rel=1e-5)


def test_a_custom_loss():
    cubic = make_loss(lambda o, t: (o - t).abs() ** 3)
    assert cubic(OUTPUT, TARGET).item() == pytest.approx(((OUTPUT - TARGET).abs() ** 3).mean())
    averaged = make_loss(lambda o, t: (o - t).abs().mean())
    with pytest.raises(InputError, match="do not average inside it"):
        averaged(OUTPUT, TARGET, torch.ones(2, 2, dtype=torch.bool))


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="loss='rmse' is not valid; use one of 'mse'"):
        make_loss("rmse")
