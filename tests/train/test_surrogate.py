from functools import partial

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data import covariance
from fewer.data.source import array_source
from fewer.train.surrogate import RandomFeatureSurrogate, network_elimination, network_swaps


@pytest.fixture(scope="module")
def folded():
    """Six hidden causes, each beside its square and a noisy copy: squares do not tell the sign."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    return np.hstack([x, x**2 / 2**0.5, x + 0.5 * rng.normal(size=x.shape)])


@pytest.fixture(scope="module")
def summary(folded):
    return covariance(array_source(folded))


def test_it_finds_what_a_linear_search_cannot(folded, summary):
    source = array_source(folded)
    constraints = resolve(None, 18, 6)
    start = np.arange(6, 12)  # the squares
    found = network_swaps(source, summary, [start], constraints)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]


def test_it_never_ends_worse_than_its_best_start(folded, summary):
    source = array_source(folded)
    rng = np.random.default_rng(1)
    starts = [np.sort(rng.choice(18, 4, replace=False)) for _ in range(3)]
    judge = RandomFeatureSurrogate(source, summary, k=4, seed=5)
    found = network_swaps(source, summary, starts, resolve(None, 18, 4), seed=5)
    assert judge.errors([found])[0] <= judge.errors(starts).min()


def test_the_constraints_hold(folded, summary):
    source = array_source(folded)
    costs = np.ones(18)
    costs[:6] = 3.0
    groups = [[0, 6], [1, 7]]
    constraints = resolve(
        None, 18, 4, include=[12], exclude=[2], costs=costs, budget=8.0, groups=groups
    )
    start = constraints.complete([12, 13, 14, 15])
    found = network_swaps(source, summary, [start], constraints, rounds=5)
    constraints.check(found)


def test_a_price_keeps_expensive_features_out(folded, summary):
    source = array_source(folded)
    costs = np.r_[np.full(6, 5.0), np.ones(12)]
    start = np.arange(12, 16)
    free = network_swaps(source, summary, [start], resolve(None, 18, 4))
    dear = resolve(None, 18, 4, costs=costs, cost_weight=1.0)
    assert costs[free].sum() > costs[network_swaps(source, summary, [start], dear)].sum()


def test_one_feature_and_no_choice(folded, summary):
    source = array_source(folded)
    assert len(network_swaps(source, summary, [np.array([9])], resolve(None, 18, 1))) == 1
    everything = np.arange(18)
    found = network_swaps(source, summary, [everything], resolve(None, 18, 18))
    assert found.tolist() == everything.tolist()


def test_rows_of_a_group_are_not_split(folded, summary):
    source = array_source(np.repeat(folded[:60], 10, axis=0))  # ten copies of each row
    labels = np.repeat(np.arange(60), 10)
    panel = [np.arange(6)]
    honest = RandomFeatureSurrogate(source, summary, k=6, labels=labels, width=64)
    leaky = RandomFeatureSurrogate(source, summary, k=6, width=64)
    assert all(fold.start % 10 == fold.stop % 10 == 0 for fold in honest.folds)
    assert honest.errors(panel)[0] > 1.5 * leaky.errors(panel)[0]
    alone = RandomFeatureSurrogate(source, summary, k=6, labels=np.zeros(600), width=64)
    assert [fold.start for fold in alone.folds] == [0, 150, 300, 450]
    two = RandomFeatureSurrogate(source, summary, k=6, labels=np.arange(600) // 450, width=64)
    assert len(two.folds) == 2


def test_errors_are_those_of_held_out_rows(folded, summary):
    panel = np.array([0, 4, 13])
    judge = RandomFeatureSurrogate(array_source(folded), summary, k=3, width=20)
    z, y = judge.inputs[:, panel].double(), judge.targets.double()
    random = (z @ judge.mix[panel].double() + judge.shift.double()).relu()
    phi = np.hstack([random, z, np.ones((len(z), 1))])
    wrong = 0.0
    for fold in judge.folds:
        fit = np.ones(len(z), dtype=bool)
        fit[fold] = False
        gram = phi[fit].T @ phi[fit] / fit.sum() + np.diag(judge.penalty[: phi.shape[1]].double())
        weights = np.linalg.solve(gram, phi[fit].T @ y.numpy()[fit] / fit.sum())
        wrong += ((phi[~fit] @ weights - y.numpy()[~fit]) ** 2).sum()
    assert judge.errors([panel])[0] == pytest.approx(wrong / folded.size, rel=1e-4)


def test_missing_values_count_as_means(folded):
    gappy = folded.copy()
    gappy[::7, 3] = np.nan
    source = array_source(gappy)
    judge = RandomFeatureSurrogate(source, covariance(source), k=2, width=32)
    assert np.isfinite(judge.errors([np.array([3, 4])])).all()


def test_the_seed_repeats(folded, summary):
    source = array_source(folded)
    constraints = resolve(None, 18, 5)
    one, two = (
        network_swaps(source, summary, [np.arange(5)], constraints, seed=3, rounds=4)
        for _ in range(2)
    )
    assert one.tolist() == two.tolist()


def test_panels_one_by_one_and_together():
    random = np.random.default_rng(0)
    source = array_source(random.normal(size=(300, 5)) @ random.normal(size=(5, 12)))
    panels = [np.array([0, 3, 7]), np.array([1, 2]), np.array([4, 5, 6, 11]), np.array([0, 3, 7])]

    def judge():
        return RandomFeatureSurrogate(source, covariance(source), k=3, width=32, rows=300)

    one_by_one, together = judge(), judge()
    together.one_by_one = False
    errors = one_by_one.errors(panels)
    np.testing.assert_allclose(errors, together.errors(panels), rtol=1e-4)
    assert len(one_by_one.known) == 3  # the last is the first
    np.testing.assert_array_equal(one_by_one.errors(panels[::-1]), errors[::-1])
    assert one_by_one.errors([]).shape == (0,)


@pytest.fixture(scope="module")
def products():
    """Five factors, and two noisy copies of the product of every two."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1000, 5))
    pairs = [x[:, i] * x[:, j] for i in range(5) for j in range(i)]
    copies = np.repeat(np.stack(pairs, axis=1), 2, axis=1)
    return np.hstack([x, copies + 0.1 * rng.normal(size=copies.shape)])


def test_factors_of_products_are_found_together(products):
    """One factor without the others explains nothing but itself."""
    source, start = array_source(products), np.array([5, 7, 9, 11, 13])
    find = partial(network_swaps, source, covariance(source), [start], further=0)
    assert find(resolve(None, 25, 5)).tolist() == [0, 1, 2, 3, 4]
    costs = np.r_[np.full(5, 3.0), np.ones(20)]
    constraints = resolve(None, 25, 5, include=[5], costs=costs, budget=9.0)
    constraints.check(find(constraints))


def test_interactions_are_those_of_factors(products):
    source = array_source(products)
    judge = RandomFeatureSurrogate(source, covariance(source), k=5)
    strength = judge.interactions(np.array([5, 7]))  # the products of (1, 0) and (2, 0)
    assert strength.shape == (25, 25)
    np.testing.assert_allclose(strength, strength.T, rtol=1e-3, atol=1e-3 * strength.max())
    pairs = {(i, j): strength[i, j] for i in range(5) for j in range(i)}
    known = max(pairs.pop((1, 0)), pairs.pop((2, 0)))
    assert min(pairs.values()) > 5 * known


def test_elimination_keeps_what_interacts(folded):
    """The factors of a product are linearly unrelated to it; a noisy copy of it is related."""
    x = folded[:, :6]
    product = x[:, 0] * x[:, 1]
    rows = np.column_stack([x, product + 3 * folded[:, 17]])
    targets = torch.from_numpy(product - product.mean())[:, None]
    source = array_source(rows)
    linked = network_elimination(
        source, covariance(source), np.arange(7), resolve(None, 7, 2), targets=targets
    )
    assert linked.tolist() == [0, 1]


def test_elimination_obeys_the_constraints(folded, summary):
    source, panel = array_source(folded), np.array([0, 1, 2, 3, 6, 12, 13])
    rules = resolve(
        None, 18, 3, include=[13], groups=[[0, 6]], sets={"a": [2, 3]}, at_least={"a": 1}
    )
    found = network_elimination(source, summary, panel, rules)
    rules.check(found)
    assert set(found) < set(panel)
    one = resolve(None, 18, 1, sets={"a": [2]}, at_least={"a": 1})
    assert network_elimination(source, summary, panel, one).tolist() == [2]


def test_elimination_from_many_features_counts_what_reconstructing_needs():
    """Of two panels that predict equally well, the one that also reconstructs is left."""
    random = np.random.default_rng(0)
    common = random.normal(size=(300, 1))
    x = np.hstack([common + 0.3 * random.normal(size=(300, 30)), random.normal(size=(300, 20))])
    targets = torch.from_numpy(x[:, 49:] - x[:, 49:].mean())
    source = array_source(x)
    options = {"targets": targets, "reconstruct": 0.9}
    found = network_elimination(
        source, covariance(source), np.arange(20, 50), resolve(None, 50, 2), **options
    )
    assert found[0] < 30
    assert found[1] == 49
