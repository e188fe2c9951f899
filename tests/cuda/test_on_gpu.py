"""On a GPU: the same method, mixed precision, results back on the CPU."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fewer import ConcreteAutoencoder, ConcreteClassifier
from fewer.data import batches, moments
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.nn import ConcreteSelector, make_loss
from fewer.nn.concrete import linear_reconstruction_gradients
from fewer.train.linear import fit_likelihood

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "auto"])
@pytest.mark.parametrize("decoder", ["linear", (128,)])
def test_as_good_as_on_the_cpu(digits, precision, decoder):
    train, test = digits
    options = {"k": 10, "decoder": decoder, "random_state": 0}
    there = ConcreteAutoencoder(**options, device="cuda", precision=precision).fit(train)
    here = ConcreteAutoencoder(**options, device="cpu").fit(train)
    assert there.score(test) > here.score(test) - 0.03
    assert {p.device.type for p in there.decoder_.parameters()} == {"cpu"}
    assert len(set(there.nodes_.tolist())) == 10


def test_auto_takes_the_gpu(digits):
    torch.cuda.reset_peak_memory_stats()
    ConcreteAutoencoder(k=3, random_state=0).fit(digits[0])
    assert torch.cuda.max_memory_allocated() > digits[0].size * 4


def test_a_transcriptome_is_solved_in_closed_form():
    """A CPU would take the gradient with so many features."""
    X = load("geo-synthetic", n=600, d=10_463).X
    options = {"k": 30, "random_state": 0, "refine": None}  # swaps would end at the same panel
    cae = ConcreteAutoencoder(**options).fit(X[:500])
    assert cae.history_[-1]["val_loss"] is None  # only the gradient holds rows out
    gradient = ConcreteAutoencoder(solver="gradient", **options).fit(X[:500])
    assert gradient.history_[-1]["val_loss"] is not None
    assert cae.score(X[:500]) > gradient.score(X[:500])


def test_streamed_rows_equal_resident_rows(digits, monkeypatch):
    options = {"k": 5, "random_state": 0, "device": "cuda", "precision": "float32", "epochs": 30}
    options |= {"stop_probability": 0.3}
    kept = ConcreteAutoencoder(**options).fit(digits[0])
    monkeypatch.setattr(batches.Batches, "_fits", lambda self: False)
    streamed = ConcreteAutoencoder(**options).fit(digits[0])
    np.testing.assert_allclose(streamed.logits_, kept.logits_, rtol=1e-2, atol=1e-2)


def test_a_classifier_and_the_callers_random_state(digits):
    X, y = load_digits(return_X_y=True)
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    model = ConcreteClassifier(k=15, random_state=0, device="cuda").fit(X[:1400], y[:1400])
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert model.score(X[1400:], y[1400:]) > 0.85


def test_a_linear_classifier_has_the_same_minimum_there():
    X, y = load_digits(return_X_y=True)
    source, columns = array_source(X), np.arange(10, 50, 4)
    lines = [
        fit_likelihood(
            source,
            columns,
            moments(source),
            torch.tensor(y),
            10,
            make_loss("cross_entropy"),
            device=device,
        )
        for device in (torch.device("cpu"), torch.device("cuda"))
    ]
    np.testing.assert_allclose(*(line.weight.detach().numpy() for line in lines), atol=1e-4)


def test_the_fast_path_is_within_its_tolerance_of_float64():
    torch.manual_seed(0)
    x, choice = torch.randn(256, 784), torch.softmax(torch.randn(50, 784) * 3, dim=1)
    parts = (x, torch.cat([choice, torch.randn(51, 784)]))  # the decoder: bias and weights
    results = [
        linear_reconstruction_gradients(*(part.to(device, dtype) for part in parts))
        for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64))
    ]
    for ours, exact in zip(*results, strict=True):
        error = (ours.cpu().double() - exact).abs().max() / exact.abs().max()
        assert error < 1e-4


def test_the_layer_on_the_gpu():
    selector = ConcreteSelector(20, 4).cuda()
    selector.temperature = 0.5
    x = torch.randn(8, 20, device="cuda")
    assert selector(x).device.type == "cuda"
    assert torch.equal(selector.eval()(x), x[:, selector.indices()])


@pytest.mark.parametrize("decoder", [(64,), (96, 32)])
def test_a_network_trained_by_graph_equals_one_trained_step_by_step(digits, monkeypatch, decoder):
    from fewer.train import network

    train, test = digits
    options = {"k": 10, "include": range(10, 60, 5), "decoder": decoder, "random_state": 0}
    options |= {"device": "cuda", "precision": "float32", "refit_epochs": 5}
    quick = ConcreteAutoencoder(**options).fit(train)
    used = []

    def plain(*given, **options):
        used.append(given)

    monkeypatch.setattr(network, "fast_epochs", plain)
    slow = ConcreteAutoencoder(**options).fit(train)
    assert used
    assert quick.columns_.tolist() == slow.columns_.tolist()
    one, two = quick.reconstruct(test), slow.reconstruct(test)
    assert np.abs(one - two).max() < 0.02 * np.abs(two).max()
    assert quick.score(test) == pytest.approx(slow.score(test), abs=1e-3)


def test_dropout_and_norms_by_graph(digits):
    train, test = digits
    for norm in ("batch", "layer"):
        model = ConcreteAutoencoder(
            k=12, decoder=(128,), dropout=0.1, norm=norm, random_state=0, device="cuda"
        )
        assert model.fit(train).score(test) > 0.6
