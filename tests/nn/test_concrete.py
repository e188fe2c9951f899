"""The selector layer against its definition and against torch's own distribution."""

from unittest import mock

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import RelaxedOneHotCategorical

from fewer.errors import InputError, TypeInputError
from fewer.nn import ConcreteSelector, relaxed_choice
from fewer.nn.concrete import ConcreteNetwork, SampledGumbel, _gumbel_quantiles, gumbel_noise
from fewer.nn.losses import make_loss

ALPHA = torch.tensor([0.1, 0.6, 1.3, 3.0])


def one_node(alpha, temperature):
    selector = ConcreteSelector(len(alpha), 1, temperature=temperature)
    with torch.no_grad():
        selector.weight.copy_(alpha.log()[None])
    return selector


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_samples_follow_torchs_relaxed_one_hot_categorical(temperature):
    torch.manual_seed(0)
    ours = one_node(ALPHA, temperature).sample(rows=20_000)[:, 0].detach()
    reference = RelaxedOneHotCategorical(torch.tensor(temperature), probs=ALPHA)
    theirs = reference.sample((20_000,))
    for j in range(len(ALPHA)):
        # Kolmogorov-Smirnov: a wrong sign, scale or temperature gives p far below 1e-10
        assert stats.ks_2samp(ours[:, j], theirs[:, j]).pvalue > 1e-3


def test_cold_samples_pick_features_with_frequency_alpha():
    torch.manual_seed(1)
    draws = one_node(ALPHA, 1e-3).sample(rows=40_000)[:, 0].detach()
    assert (draws.max(dim=1).values > 0.99).float().mean() > 0.99
    counts = np.bincount(draws.argmax(dim=1), minlength=4)
    expected = (ALPHA.double() / ALPHA.double().sum()).numpy() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_gradients_agree_with_finite_differences():
    torch.manual_seed(2)
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(3, 5, dtype=torch.float64)
    x = torch.randn(7, 5, dtype=torch.float64)
    for temperature in (0.5, 2.0):
        assert torch.autograd.gradcheck(
            lambda parameter, t=temperature: x @ relaxed_choice(parameter, t, noise).T, logits
        )


def test_gradients_of_the_layer_agree_with_finite_differences():
    selector = ConcreteSelector(5, 2, temperature=0.7).double()
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def output():
        torch.manual_seed(3)  # the same noise each time
        return selector(x).square().sum()

    output().backward()
    step = 1e-6
    for i, j in ((0, 0), (1, 3)):
        with torch.no_grad():
            selector.weight[i, j] += step
            above = output().item()
            selector.weight[i, j] -= 2 * step
            below = output().item()
            selector.weight[i, j] += step
        assert selector.weight.grad[i, j].item() == pytest.approx((above - below) / 2 / step, 1e-5)


def test_eval_mode_passes_on_single_features():
    torch.manual_seed(0)
    selector = ConcreteSelector(6, 3).eval()
    x = torch.randn(4, 6)
    assert torch.equal(selector(x), x[:, selector.weight.argmax(dim=1)])


def test_one_draw_a_batch_or_a_row():
    torch.manual_seed(0)
    x = torch.ones(50, 1) * torch.arange(6.0)
    shared = ConcreteSelector(6, 3, temperature=0.5)(x)
    assert torch.allclose(shared, shared[:1].expand_as(shared))
    own = ConcreteSelector(6, 3, temperature=0.5, draw="row")(x)
    assert len(own[:, 0].unique()) == 50


def test_statistics_at_both_ends():
    selector = ConcreteSelector(8, 2, init_scale=0.0)
    assert selector.mean_max_probability().item() == pytest.approx(1 / 8)
    assert selector.entropy().tolist() == pytest.approx([np.log(8)] * 2)
    with torch.no_grad():
        selector.weight[0, 3] = selector.weight[1, 5] = 50.0
        selector.weight[0, 2] = 10.0
    assert selector.mean_max_probability().item() == pytest.approx(1)
    assert selector.entropy().tolist() == pytest.approx([0, 0], abs=1e-5)
    assert selector.indices().tolist() == [3, 5]
    assert selector.groups(2)[0].tolist() == [3, 2]
    assert torch.allclose(selector.probabilities().sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("logits", ["direct", "indirect"])
def test_forbidden_features_are_never_drawn_nor_chosen(logits):
    allowed = torch.tensor([True, False, True, False, True])
    selector = ConcreteSelector(5, 4, logits=logits, allowed=allowed)
    assert (selector.sample(rows=100)[..., ~allowed] == 0).all()
    assert allowed[selector.indices()].all()
    selector(torch.randn(3, 5)).sum().backward()
    assert all(p.grad.isfinite().all() for p in selector.parameters())


@pytest.mark.parametrize("logits", ["direct", "indirect"])
def test_included_features_are_passed_on_and_taken_by_no_other_node(logits):
    selector = ConcreteSelector(6, 4, include=[5, 2], logits=logits)
    x = torch.randn(9, 6)
    assert torch.equal(selector(x)[:, :2], x[:, [5, 2]])
    assert (selector.sample(rows=50)[:, 2:, [5, 2]] == 0).all()
    assert selector.eval().indices()[:2].tolist() == [5, 2]
    selector.train()(x).sum().backward()
    assert selector.weight.grad.isfinite().all()


def test_all_features_may_be_included():
    selector = ConcreteSelector(6, 2, include=[5, 2])
    x = torch.randn(9, 6)
    for mode in (selector.train(), selector.eval()):
        assert torch.equal(mode(x), x[:, [5, 2]])


@pytest.mark.parametrize("logits", ["direct", "indirect"])
def test_the_options_of_a_layer_are_shown(logits):
    shown = repr(ConcreteSelector(6, 2, draw="row", logits=logits))
    assert shown == f"ConcreteSelector(d=6, k=2, draw='row', logits='{logits}')"


@pytest.mark.parametrize("options", [{}, {"logits": "indirect", "embedding": 4}])
def test_a_state_dict_restores_the_layer(options):
    first, second = ConcreteSelector(9, 2, **options), ConcreteSelector(9, 2, **options)
    first.temperature = 0.25
    second.load_state_dict(first.state_dict())
    assert second.temperature == 0.25
    assert torch.equal(first.logits, second.logits)


@pytest.mark.parametrize("logits", ["direct", "indirect"])
def test_it_trains_in_front_of_any_network(logits):
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = x[:, [6]] - 2 * x[:, [1]]
    network = torch.nn.Sequential(ConcreteSelector(8, 2, logits=logits), torch.nn.Linear(2, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for step in range(400):
        network[0].temperature = 5 * 0.02 ** (step / 400)
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
    assert sorted(network[0].indices().tolist()) == [1, 6]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConcreteSelector(5, 0), "k=0 must be a whole number of at least 1"),
        (lambda: ConcreteSelector(5, 2, temperature=0), "temperature=0 must be above 0"),
        (lambda: ConcreteSelector(5, 2, draw="all"), "draw='all' is not valid"),
        (lambda: ConcreteSelector(5, 2, logits="no"), "logits='no' is not valid"),
        (lambda: ConcreteSelector(3, 1, allowed=[False] * 3), "leave none of 3 features"),
        (lambda: ConcreteSelector(3, 1, allowed=[True] * 2), "must hold 3 flags"),
        (lambda: ConcreteSelector(3, 1, include=[1, 2]), "at most k=1 different columns"),
        (lambda: ConcreteSelector(3, 2, include=[7]), "from 0 to 2"),
        (lambda: ConcreteSelector(5, 2)(torch.ones(1, 4)), "takes 5 features; got 4"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_k_must_be_whole():
    with pytest.raises(TypeInputError, match=r"k=2\.5 must be a whole number"):
        ConcreteSelector(5, 2.5)


def test_fast_noise_has_the_quantiles_of_a_gumbel_distribution():
    table = _gumbel_quantiles().double().sort().values
    assert len(table) == 2**16
    middles = (np.arange(2**16) + 0.5) / 2**16
    np.testing.assert_allclose(table, stats.gumbel_r.ppf(middles), rtol=1e-5, atol=1e-5)
    drawn = SampledGumbel(300, 101).draw(torch.Generator().manual_seed(0))
    assert drawn.shape == (300, 101)
    assert stats.kstest(drawn.flatten().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3
    slow = gumbel_noise(torch.zeros(30_000), torch.Generator().manual_seed(0))
    assert stats.kstest(slow.numpy(), stats.gumbel_r.cdf).pvalue > 1e-3
    # the extremes of the uniform distribution are finite
    for value in (0.0, 1.0):
        with mock.patch.object(torch.Tensor, "uniform_", lambda x, generator, v=value: x.fill_(v)):
            assert gumbel_noise(torch.zeros(3)).isfinite().all()


def test_noise_comes_from_the_generator_that_is_given():
    selector = ConcreteSelector(6, 3)
    one = selector.sample(generator=torch.Generator().manual_seed(1))
    selector.generator = torch.Generator().manual_seed(1)
    torch.testing.assert_close(selector.sample(), one)
    assert not torch.equal(selector.sample(), one)
    torch.testing.assert_close(selector.sample(generator=torch.Generator().manual_seed(1)), one)
    precise = ConcreteSelector(6, 3).double()
    draws = precise.sample(generator=torch.Generator().manual_seed(1))
    assert draws.dtype == torch.float64
    noise = gumbel_noise(precise.logits, torch.Generator().manual_seed(1))
    torch.testing.assert_close(draws, relaxed_choice(precise.logits, precise.temperature, noise))


@pytest.mark.parametrize("include", [[0], [5, 2]])
def test_included_features_need_no_noise(include):
    plain, with_some = (
        ConcreteSelector(6, 3),
        ConcreteSelector(6, 3 + len(include), include=include),
    )
    with torch.no_grad():
        with_some.weight.copy_(plain.weight)
        with_some.forbidden.fill_(False)
    draws = [one.sample(generator=torch.Generator().manual_seed(1)) for one in (plain, with_some)]
    torch.testing.assert_close(draws[1][len(include) :], draws[0])
    torch.testing.assert_close(
        draws[1][: len(include)], torch.nn.functional.one_hot(torch.tensor(include), 6).float()
    )


def test_indirect_logits_are_as_small_as_direct_ones():
    torch.manual_seed(0)
    for options in ({}, {"logits": "indirect"}, {"logits": "indirect", "embedding": 50}):
        selector = ConcreteSelector(200, 40, init_scale=0.02, **options)
        assert float(selector.logits.detach().std()) == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("draw", ["batch", "row"])
def test_penalties_are_added_to_the_loss(draw):
    network = ConcreteNetwork(ConcreteSelector(5, 2, draw=draw), torch.nn.Linear(2, 5))
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    grads = []
    for factor in (0.0, 1.0):
        network.zero_grad()
        torch.manual_seed(0)
        network.backward(
            x, x, None, make_loss("mse"), lambda f=factor: f * network.decoder.weight.sum()
        )
        grads.append(network.decoder.weight.grad.clone())
    torch.testing.assert_close(grads[1] - grads[0], torch.ones(5, 2))
