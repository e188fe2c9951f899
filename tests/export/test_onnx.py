"""Every kind of decoder as an ONNX graph."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris

import fewer
from fewer.errors import InputError
from fewer.export import export_onnx
from fewer.nn import MeasuredDecoder, build_decoder
from fewer.nn.decoder import ACTIVATIONS, skip_connected

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")


@pytest.fixture(scope="module")
def panel():
    return fewer.select(load_iris().data, 2, strategies=["search"], random_state=0, device="cpu")


def run(path, rows):
    return reference.ReferenceEvaluator(onnx.load(path)).run(None, {"measured": rows})


def with_decoder(panel, net, **more):
    decoder = MeasuredDecoder(
        net.double(),
        fill=torch.tensor([3.0, 2.0]).double(),
        center=torch.tensor([3.0, 4.0]).double(),
        scale=torch.tensor([0.5, 2.0]).double(),
        order=torch.tensor([1, 0]),
        **more,
    )
    panel = fewer.Panel(
        replace(panel.reconstructor, decoder=decoder, names=np.array(list("abcd"), dtype=object)),
        held_out=panel.held_out,
        leaderboard=panel.leaderboard,
        settings=panel.settings,
    )
    return panel


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_hidden_layers(tmp_path, panel, activation, norm):
    torch.manual_seed(0)
    net = build_decoder((7, 5), 2, 4, activation=activation, norm=norm, dropout=0.1)
    net(torch.randn(50, 2) * 3 + 1)  # batch statistics that are not those of the start
    made = with_decoder(panel, net)
    assert export_onnx(made, tmp_path / "net.onnx") < 1e-4
    rows = np.array([[5.0, 1.0], [np.nan, 2.5], [4.0, np.nan]])
    (found,) = run(tmp_path / "net.onnx", rows.astype(np.float32))
    np.testing.assert_allclose(found, made.reconstruct(rows), rtol=1e-4, atol=1e-5)


def test_a_skip_connection(tmp_path, panel):
    torch.manual_seed(0)
    net = skip_connected(build_decoder((7,), 2, 4))
    torch.nn.init.normal_(net[-1].weight)
    assert export_onnx(with_decoder(panel, net), tmp_path / "net.onnx") < 1e-4


@pytest.mark.parametrize("link", ["sigmoid", "exp", "softmax"])
def test_links(tmp_path, panel, link):
    made = with_decoder(
        panel, torch.nn.Linear(2, 4), link=link, offset=torch.ones(4).double(), log_inputs=True
    )
    assert export_onnx(made, tmp_path / "net.onnx") < 1e-4


def patterns(panel, rng, n=200):
    """Rows like those of training, with from none to all values missing."""
    decoder = panel.reconstructor.decoder
    rows = decoder.fill.numpy() + decoder.scale.numpy() * rng.normal(size=(n, panel.k))
    rows = rows.astype(np.float32).astype(np.float64)
    rows[rng.random(rows.shape) < rng.random((n, 1))] = np.nan
    rows[0], rows[1] = np.nan, decoder.fill.numpy()
    return rows


@pytest.mark.filterwarnings("ignore:27 rows have none of the 6 measured features")
@pytest.mark.parametrize("kind", ["linear", "network", "target", "wide"])
def test_missing_inputs_are_completed_as_the_panel_does(tmp_path, kind):
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    quick = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}
    if kind == "wide":  # more chosen features than a graph could unroll
        factors = rng.normal(size=(300, 30)) @ rng.normal(size=(30, 142))
        fixed = {"include": list(range(140))}  # nothing to search
        made = fewer.select(factors + rng.normal(size=factors.shape), 140, **quick, **fixed)
    else:
        X, y = load_breast_cancer(return_X_y=True)
        made = fewer.select(X, 6, **quick, **({"target": y} if kind == "target" else {}))
    if kind == "network":
        torch.manual_seed(0)
        decoder = MeasuredDecoder(
            build_decoder((7,), 6, 30).double(),
            fill=made.reconstructor.decoder.fill,
            center=made.reconstructor.decoder.center,
            scale=made.reconstructor.decoder.scale,
        )
        made = fewer.Panel(
            replace(made.reconstructor, decoder=decoder),
            held_out=made.held_out,
            leaderboard=made.leaderboard,
            settings=made.settings,
        )
    export_onnx(made, tmp_path / "p.onnx")
    session = runtime.InferenceSession(tmp_path / "p.onnx", providers=["CPUExecutionProvider"])
    dtype = {"tensor(float)": np.float32}.get(session.get_inputs()[0].type, np.float64)
    rows = patterns(made, rng, 60 if kind == "wide" else 200)
    found = session.run(None, {"measured": rows.astype(dtype)})
    expected = made.reconstruct(rows)
    size = np.maximum(expected.std(axis=0), np.sqrt(made.held_out.errors))
    assert np.abs((found[0] - expected) / size).max() < 1e-3
    assert not np.isnan(found[0]).any()
    if kind == "target":
        np.testing.assert_allclose(found[1], made.predict_proba(rows), atol=1e-4)
    # the graph does not grow with the panel
    assert len(onnx.load(tmp_path / "p.onnx").graph.node) < 60


def test_values_far_from_zero_keep_double_precision(tmp_path):
    rows = load_iris().data + 1e7
    far = fewer.select(rows, 2, strategies=["search"], random_state=0, device="cpu")
    assert export_onnx(far, tmp_path / "far.onnx") < 1e-3
    (found,) = run(tmp_path / "far.onnx", rows[:, far.indices])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, far.reconstruct(rows[:, far.indices]), rtol=0, atol=1e-6)


def test_a_target_is_predicted_too(tmp_path):
    data = load_breast_cancer()
    labels = np.array(["bad", "good"])[data.target]
    panel = fewer.select(
        data.data, 3, target=labels, strategies=["search"], validation=0.2, random_state=0
    )
    export_onnx(panel, tmp_path / "t.onnx")
    measured = data.data[:20, panel.indices].astype(np.float32)
    rebuilt, chance = run(tmp_path / "t.onnx", measured)
    np.testing.assert_allclose(chance, panel.predict_proba(measured), atol=1e-4)
    assert rebuilt.shape == (20, 30)
    held = {
        entry.key: json.loads(entry.value)
        for entry in onnx.load(tmp_path / "t.onnx").metadata_props
    }
    assert held["classes"] == ["bad", "good"]


def test_a_module_of_your_own_is_refused(tmp_path, panel):
    made = with_decoder(panel, torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Softplus()))
    with pytest.raises(InputError, match="a decoder with Softplus cannot be written as ONNX here"):
        export_onnx(made, tmp_path / "own.onnx")
    assert list(tmp_path.iterdir()) == []
