"""Measurement errors of known variance, and features that count more than others."""

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import fewer
from fewer.errors import InputError

QUICK = {"strategies": ["search"], "random_state": 0, "scale": "none"}
N, D, K = 600, 30, 5


class Sensors:
    """Five latent factors; the first eight of thirty sensors are very noisy."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        factors = draw.normal(size=(2 * N, 5))
        self.truth = factors @ draw.normal(size=(5, D)) + 0.2 * draw.normal(size=(2 * N, D))
        self.noise = draw.uniform(0.5, 2.0, D)
        self.noise[:8] = 10.0
        self.X, self.again = (
            self.truth + draw.normal(size=self.truth.shape) * np.sqrt(self.noise) for _ in range(2)
        )
        self.label = factors[:N, 0] > 1.0

    def true_score(self, panel: fewer.Panel) -> float:
        rows, truth = self.X[N:], self.truth[N:]
        left = panel.reconstruct(rows[:, panel.indices]) - truth
        return float(1 - (left**2).sum() / ((truth - truth.mean(0)) ** 2).sum())


@pytest.fixture(scope="module")
def sensors() -> Sensors:
    return Sensors()


@pytest.fixture(scope="module")
def panel(sensors: Sensors) -> fewer.Panel:
    return fewer.select(sensors.X[:N], K, noise=sensors.noise, **QUICK)


def test_noisy_sensors_are_not_chosen_for_reproducing_themselves(sensors, panel) -> None:
    plain = fewer.select(sensors.X[:N], K, **QUICK)
    assert (plain.indices < 8).any()
    assert (panel.indices >= 8).all()
    assert sensors.true_score(panel) > sensors.true_score(plain) + 0.15


def test_scores_are_those_of_the_truth(sensors, panel) -> None:
    truth = sensors.true_score(panel)
    assert panel.score(sensors.X[N:]) == pytest.approx(truth, abs=0.03)
    assert panel.held_out == pytest.approx(truth, abs=3 * panel.held_out.standard_error)
    assert "against the signal behind the noise" in panel.settings["protocol"]
    assert panel.evidence.explained["units"]["pca"] > panel.held_out
    one = fewer.select(sensors.X[:N], K, noise=sensors.noise, validation=0.3, **QUICK)
    assert one.held_out == pytest.approx(truth, abs=3 * one.held_out.standard_error)


def test_the_decoder_is_the_best_one_for_the_truth(sensors, panel) -> None:
    measured = sensors.X[:N][:, panel.indices]
    centred, mean = measured - measured.mean(0), sensors.truth[:N].mean(0)
    best = np.linalg.lstsq(centred, sensors.truth[:N] - mean, rcond=None)[0]
    rows = sensors.X[N:][:, panel.indices]
    ideal = (rows - measured.mean(0)) @ best + mean
    left = ((ideal - sensors.truth[N:]) ** 2).sum()
    assert (
        1 - sensors.true_score(panel)
        < 1.1 * left / ((sensors.truth[N:] - sensors.truth[N:].mean(0)) ** 2).sum()
    )


def test_measured_values_are_denoised_and_raw_on_request(sensors, panel, tmp_path) -> None:
    rows = sensors.X[N:][:, panel.indices]
    found = panel.reconstruct(rows)
    truth = sensors.truth[N:][:, panel.indices]
    assert ((found[:, panel.indices] - truth) ** 2).mean() < 0.85 * ((rows - truth) ** 2).mean()
    assert np.allclose(panel.reconstruct(rows, denoise=False)[:, panel.indices], rows)
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    assert np.allclose(again.reconstruct(rows), found)
    assert again.score(sensors.X[N:]) == panel.score(sensors.X[N:])
    _, low, high = again.reconstruct(rows, interval=0.9)
    inside = (low <= sensors.X[N:]) & (sensors.X[N:] <= high)
    assert inside[:, panel.indices].mean() == pytest.approx(0.9, abs=0.05)


def test_replicates_tell_the_noise(sensors, panel) -> None:
    found = fewer.select(sensors.X[:N], K, noise=sensors.again[:N], **QUICK)
    assert found.reconstructor.noise == pytest.approx(sensors.noise, rel=0.3)
    assert found.indices.tolist() == panel.indices.tolist()


def test_with_a_target_and_reconstruction(sensors) -> None:
    options = {**QUICK, "validation": 0.3, "noise": sensors.noise, "reconstruct": 0.5}
    found = fewer.select(sensors.X[:N], K, target=sensors.label, **options)
    assert (found.indices >= 8).all()
    assert found.held_out > 0.7
    balanced = fewer.select(
        sensors.X[:N], K, target=sensors.label, class_weight="balanced", **options
    )
    assert (balanced.indices >= 8).all()
    filters = options | {"strategies": ["search", "filters"]}  # asked for, so they are compared
    with_filters = fewer.select(sensors.X[:N], K, target=sensors.label, **filters)
    assert "ANOVA" in [row["strategy"] for row in with_filters.leaderboard]


def test_changed_panels_keep_their_noise(panel) -> None:
    more, fewer_features = panel.extend(K + 1), panel.shrink(K - 1)
    assert more.held_out > panel.held_out > fewer_features.held_out
    assert more.reconstructor.noise is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": [1.0, 2.0]}, "noise has shape"),
        ({"noise": {"nothing": 1.0}}, "nothing"),
        ({"noise": {0: -1.0}}, "at least 0"),
        ({"noise": 1e9}, "above the variance of every feature"),
        ({"noise": [-1.0] * D}, "noise of feature 0 is -1.0; give at least 0"),
        ({"noise": ["much"] * D}, "noise must be numbers, one for each of 30 features"),
        ({"noise": {"MT-*": 1.0}}, "noise: no feature matches 'MT-\\*'"),
        ({"noise": np.zeros((3, D))}, "second measurement"),
        ({"noise": 1.0, "decoder": (8,)}, "linear decoders"),
        ({"noise": 1.0, "robust_to": 1}, "robust_to"),
        ({"weights": np.zeros(D)}, "0 for every feature"),
        ({"weights": {0: "much"}}, "'much'"),
        ({"weights": {0: 1.0}, "decoder": (8,)}, "linear decoders"),
    ],
)
def test_bad_noise_and_weights_are_refused(sensors, options, message) -> None:
    with pytest.raises(InputError, match=message):
        fewer.select(sensors.X[:N], K, **QUICK | options)


def test_noise_needs_complete_rows(sensors) -> None:
    rows = sensors.X[:N].copy()
    rows[3, 3] = np.nan
    with pytest.raises(InputError, match="noise needs complete rows"):
        fewer.select(rows, K, noise=1.0, **QUICK)


# -- weights -----------------------------------------------------------------------------------


def weighted_error(X: NDArray, panel: fewer.Panel, weights: NDArray) -> float:
    return float((((panel.reconstruct(X[:, panel.indices]) - X) ** 2).mean(0) * weights).sum())


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    draw = np.random.default_rng(1)
    factors = draw.normal(size=(300, 6)) * [3, 3, 3, 1, 1, 1]
    loadings = np.zeros((6, 24))
    for at in range(6):
        loadings[at, 4 * at : 4 * at + 4] = draw.uniform(0.8, 1.2, 4)
    names = [f"{'loud' if at < 12 else 'faint'}_{at}" for at in range(24)]
    return pd.DataFrame(factors @ loadings + 0.3 * draw.normal(size=(300, 24)), columns=names)


def test_weights_decide_what_is_reconstructed(table) -> None:
    plain = fewer.select(table, 3, **QUICK)
    assert all(name.startswith("loud") for name in plain.features)
    found = fewer.select(table, 3, weights={"loud*": 0, "faint*": 2}, **QUICK)
    assert all(name.startswith("faint") for name in found.features)
    assert found.held_out > 0.8
    assert "counted by their weights" in found.settings["protocol"]
    weights = np.r_[np.full(12, 1e-6), np.ones(12)]
    X = table.to_numpy()
    assert weighted_error(X, found, weights) < 0.5 * weighted_error(X, plain, weights)


def test_weights_do_not_change_the_decoder_of_a_panel(table) -> None:
    columns = ["loud_0", "loud_4", "faint_12"]
    others = [name for name in table if name not in columns]
    options = {**QUICK, "include": columns, "exclude": others}
    X = table[columns].to_numpy()
    plain = fewer.select(table, 3, **options).reconstruct(X)
    found = fewer.select(table, 3, weights={"faint*": 50}, **options)
    assert np.allclose(found.reconstruct(X), plain)


def test_a_score_is_weighted(table) -> None:
    weights = dict.fromkeys(table.columns[:12], 7.0)
    found = fewer.select(table, 3, weights=weights, **QUICK | {"scale": "standard"})
    X, w = table.to_numpy(), np.r_[np.full(12, 7.0), np.ones(12)]
    by_hand = 1 - weighted_error(X, found, w) / (X.var(0) * w).sum()
    assert found.held_out == pytest.approx(by_hand, abs=0.03)
    assert abs(found.score(X) - by_hand) > 0.005
