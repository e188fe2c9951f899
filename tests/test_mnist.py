"""What the method must reach on MNIST (benchmarks/mnist.py prints the whole table)."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fewer import PAPER, ConcreteAutoencoder


def fit(train, test, **options):
    model = ConcreteAutoencoder(device="cpu", **options).fit(train)
    chosen = model.get_support(indices=True)
    decoder = LinearRegression().fit(train[:, chosen], train)
    return model, float(((decoder.predict(test[:, chosen]) - test) ** 2).mean())


def test_gradient_defaults_at_k_50(mnist):
    model, error = fit(*mnist, k=50, solver="gradient", tries=1, random_state=0)
    assert len(set(model.logits_.argmax(axis=1))) == 50
    assert model.n_conflicts_ == 0
    assert error <= 0.0185


@pytest.mark.slow
def test_gradient_over_several_seeds(mnist):
    errors = [fit(*mnist, k=50, solver="gradient", random_state=seed)[1] for seed in range(3)]
    assert np.mean(errors) <= 0.0185


def test_closed_form_at_k_50(mnist):
    model, error = fit(*mnist, k=50, random_state=0)
    assert model.n_conflicts_ == 0
    assert error <= 0.0180  # greedy reaches .01801


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_schedules_rank_as_in_the_paper(mnist):
    """Exponential best; dropping abruptly beats staying low or high."""

    def error(schedule, start, end):
        return fit(
            *mnist,
            k=20,
            solver="gradient",
            refine=None,
            schedule=schedule,
            start_temperature=start,
            end_temperature=end,
            epochs=100,
            tries=1,
            random_state=1,
        )[1]

    exponential = error("exponential", 10, 0.01)
    abrupt = error("abrupt", 10, 0.01)
    assert exponential < 0.95 * abrupt
    assert abrupt < error("constant", 10, 10)
    assert abrupt < error("constant", 0.01, 0.01)


@pytest.mark.slow
def test_paper_preset_at_k_50(mnist):
    model, error = fit(*mnist, k=50, random_state=0, **PAPER)
    assert model.converged_
    assert error <= 0.0260
