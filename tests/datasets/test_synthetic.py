"""Synthetic sets: what they promise about their answers, checked against the equations."""

import re

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fewer import ColumnSubset
from fewer.datasets import load
from fewer.datasets.synthetic import REPETITION_TIME, mri_signal
from fewer.errors import InputError, TypeInputError

GENERATED = ("planted-products", "planted-manifold", "diffusion-mri", "pulses")


@pytest.mark.parametrize("name", GENERATED)
def test_a_seed_fixes_the_rows_and_nothing_claims_to_be_measured(name):
    one, two, other = (load(name, rows=60, features=30, seed=seed) for seed in (3, 3, 4))
    assert one.X.shape == (60, 30)
    assert np.isfinite(one.X).all()
    assert len(set(one.names)) == 30
    assert np.array_equal(one.X, two.X)
    assert one.digest == two.digest != other.digest
    assert not np.array_equal(one.X, other.X)
    assert one.synthetic
    assert "SYNTHETIC" in one.description
    assert all(len(values) == 60 for values in one.parameters.values())
    assert all(len(values) == 30 for values in one.acquisition.values())
    assert len(one.split().test) == 12


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pulses", {"colour": 1}, r"pulses has no option 'colour'; it has rows, features, count"),
        ("geo-synthetic", {"rows": 3}, r"geo-synthetic has no option 'rows'; it has n, d, seed"),
        ("pulses", {"count": 0}, "count=0 must be a whole number of at least 1"),
        ("pulses", {"noise": -1.0}, "noise=-1.0 must be a number of at least 0"),
        ("planted-products", {"rows": 1}, "rows=1 must be a whole number of at least 2"),
        ("planted-products", {"features": 8}, "features=8 must be a whole number of at least 9"),
        ("planted-products", {"features": 145}, "features=145: 8 factors have 136 .*features=144,"),
        ("planted-products", {"factors": 1}, "factors=1 must be a whole number of at least 2"),
        ("planted-manifold", {"noise_features": 100}, "noise_features=100 must .* from 0 to 99"),
        ("planted-manifold", {"dimensions": 0}, "dimensions=0 must be a whole number"),
        ("planted-manifold", {"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ("diffusion-mri", {"compartments": 4}, "compartments=4 is not valid; use 2 or 3"),
        ("diffusion-mri", {"snr": 0}, "snr=0 must be a number above 0"),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)


def test_a_seed_is_a_number():
    with pytest.raises(TypeInputError, match=r"seed='a' must be a whole number"):
        load("pulses", seed="a")


# -- products ----------------------------------------------------------------------------------


def evaluated(name, factors):
    """The formula that a name spells, of factors by their names."""
    code = (
        re.sub(r"\|(.+)\|", r"abs(\1)", name).replace("sin[2", "sin(2*").replace("sqrt2", "2**.5")
    )
    code = code.replace("[", "(").replace("]", ")").replace("^", "**")
    return eval(code, {"sin": np.sin, "abs": np.abs} | factors)


def test_planted_factors_determine_every_other_column():
    data = load("planted-products", rows=300, noise=0.0)
    factors = {name: data.X[:, data.names == name][:, 0] for name in data.names[data.planted]}
    assert sorted(factors) == [f"x{i}" for i in range(8)]
    np.testing.assert_allclose(
        data.parameters["factors"], np.stack([factors[f"x{i}"] for i in range(8)], axis=1)
    )
    kinds = set()
    for name, column in zip(data.names, data.X.T, strict=True):
        expected = evaluated(name, factors)
        expected = (expected - expected.mean()) / expected.std()
        np.testing.assert_allclose(column, expected, atol=1e-12, err_msg=name)
        kinds.add(re.sub(r"x\d", "x", name))
    assert len(kinds) == 8  # a factor, a product, and three functions of one or two factors


def test_a_linear_search_does_not_find_the_factors():
    data = load("planted-products", rows=4000)
    planted = np.flatnonzero(data.planted)
    found = ColumnSubset(8, random_state=0).fit(data.X).columns_
    assert not set(found) & set(planted)

    def unexplained(columns):
        rest = np.delete(data.X, planted, axis=1)
        return 1 - LinearRegression().fit(data.X[:, columns], rest).score(data.X[:, columns], rest)

    assert unexplained(planted) > 0.85


def test_noise_has_the_given_size():
    clean, noisy = (load("planted-products", rows=20_000, noise=noise) for noise in (0.0, 0.5))
    share = 1 - np.square((clean.X * noisy.X).mean(axis=0))  # one minus squared correlation
    np.testing.assert_allclose(share[noisy.planted], 0, atol=1e-12)
    np.testing.assert_allclose(share[~noisy.planted], 0.25 / 1.25, atol=0.01)


# -- manifold ----------------------------------------------------------------------------------


def test_the_manifold_has_as_many_dimensions_as_stated():
    """In a small neighbourhood of coordinates, columns of the manifold are linear in them."""
    options = {"features": 20, "noise_features": 5, "dimensions": 2, "noise": 0.0}
    data = load("planted-manifold", rows=100_000, **options)
    z = data.parameters["coordinates"]
    assert z.shape == (100_000, 2)
    near = np.flatnonzero(np.abs(z).max(axis=1) < 0.03)
    assert len(near) > 40
    rows = data.X[near][:, data.planted]
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    assert values[2] < 0.1 * values[1] < values[1]
    whole = np.linalg.svd(data.X[:5000][:, data.planted], compute_uv=False)
    assert whole[2] > 0.3 * whole[1]  # but not on the whole


def test_noise_columns_have_nothing_in_common_with_others():
    data = load("planted-manifold", rows=20_000)
    assert (~data.planted).sum() == 40
    assert all(
        name.startswith("noise") != on for name, on in zip(data.names, data.planted, strict=True)
    )
    correlation = np.corrcoef(data.X.T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation[~data.planted]).max() < 5 / 20_000**0.5
    assert (np.abs(correlation[data.planted]).max(axis=1) > 0.3).all()


# -- diffusion MRI -----------------------------------------------------------------------------


def voxel(**changes):
    """One voxel with its fibres along x."""
    values = {"intra_fraction": 0.6, "diffusivity": 2.0, "t2_intra": 100.0, "t2_extra": 50.0}
    values |= {"t1": 1000.0, "orientation": np.array([1.0, 0.0, 0.0])} | changes
    return {name: np.array([value]) for name, value in values.items()}


def acquired(tissue, direction=(1, 0, 0), b=0.0, echo=0.0, inversion=np.inf):
    protocol = {"b": np.array([b]), "direction": np.array([direction], dtype=float)}
    protocol |= {"echo_time": np.array([echo]), "inversion_time": np.array([inversion])}
    return mri_signal(tissue, protocol).item()


def test_without_weighting_all_water_is_seen():
    recovered = 1 + np.exp(-REPETITION_TIME / 1000)
    assert acquired(voxel()) == pytest.approx(recovered)
    free = {"free_fraction": 0.3, "t2_free": 1000.0, "t1_free": 1000.0}
    assert acquired(voxel(**free)) == pytest.approx(recovered)


def test_diffusion_along_and_across_fibres():
    whole = acquired(voxel())
    inside = voxel(intra_fraction=1.0)
    assert acquired(inside, b=2.0) / whole == pytest.approx(np.exp(-2.0 * 2.0))
    assert acquired(inside, (0, 1, 0), b=2.0) / whole == pytest.approx(1.0)
    assert acquired(inside, (0.6, 0.8, 0), b=2.0) / whole == pytest.approx(np.exp(-4 * 0.36))
    outside = voxel(intra_fraction=0.0)  # nothing hinders: the same in all directions
    for direction in ((1, 0, 0), (0, 1, 0), (0, 0.6, 0.8)):
        assert acquired(outside, direction, b=1.0) / whole == pytest.approx(np.exp(-2.0))
    mixed = 0.6 * 1 + 0.4 * np.exp(-1.0 * 0.4 * 2.0)  # across: sticks stay, the rest is hindered
    assert acquired(voxel(), (0, 0, 1), b=1.0) / whole == pytest.approx(mixed)
    water = voxel(free_fraction=1.0, t2_free=1000.0, t1_free=1000.0)
    assert acquired(water, (0, 0.6, 0.8), b=1.5) / whole == pytest.approx(np.exp(-1.5 * 3.0))


def test_relaxation():
    whole, end = acquired(voxel()), np.exp(-REPETITION_TIME / 1000)
    decayed = 0.6 * np.exp(-1.0) + 0.4 * np.exp(-2.0)
    assert acquired(voxel(), echo=100.0) / whole == pytest.approx(decayed)
    assert acquired(voxel(), inversion=0.0) == pytest.approx(end - 1)  # upside down
    null = 1000 * np.log(2 / (1 + end))
    assert acquired(voxel(), inversion=null) == pytest.approx(0.0, abs=1e-12)
    water = voxel(free_fraction=1.0, t2_free=1000.0, t1_free=4000.0)
    assert acquired(water, echo=500.0, inversion=2000.0) == pytest.approx(
        np.exp(-0.5) * (1 - 2 * np.exp(-0.5) + np.exp(-REPETITION_TIME / 4000))
    )


def test_a_voxel_is_what_its_parameters_and_the_protocol_give():
    for compartments in (2, 3):
        data = load("diffusion-mri", rows=50, features=300, compartments=compartments, snr=1e9)
        expected = np.abs(mri_signal(data.parameters, data.acquisition))
        unit = (expected * data.X).sum() / np.square(data.X).sum()
        np.testing.assert_allclose(data.X * unit, expected, atol=1e-6)
        assert ("free_fraction" in data.parameters) == (compartments == 3)


def test_noise_is_rician():
    """Second moment S^2 + 2 s^2; where there is no signal, the mean is s sqrt(pi / 2)."""
    clean, noisy = (load("diffusion-mri", rows=4000, features=200, snr=snr) for snr in (1e9, 5))
    gap = np.square(noisy.X) - np.square(clean.X)
    assert gap.mean() == pytest.approx(2 / 25, rel=0.01)
    dark = clean.X < 0.01
    assert noisy.X[dark].mean() == pytest.approx(np.sqrt(np.pi / 2) / 5, rel=0.02)


def test_a_protocol_covers_all_settings():
    protocol = load("diffusion-mri", rows=2, features=1300).acquisition
    shares = {b: (protocol["b"] == b).mean() for b in np.unique(protocol["b"])}
    assert shares == pytest.approx({0: 0.1, 0.5: 0.15, 1: 0.2, 2: 0.25, 3: 0.3}, abs=0.01)
    assert set(protocol["echo_time"]) == {80, 105, 130}
    assert len(set(protocol["inversion_time"])) == 28
    g = protocol["direction"]
    weighted = protocol["b"] > 0
    np.testing.assert_allclose(np.linalg.norm(g, axis=1), weighted.astype(float))
    np.testing.assert_allclose(
        g[weighted].T @ g[weighted] / weighted.sum(), np.eye(3) / 3, atol=0.01
    )
    combined = np.stack([protocol[key] for key in ("b", "echo_time", "inversion_time")])
    assert np.abs(np.corrcoef(combined) - np.eye(3)).max() < 0.05
    other = load("diffusion-mri", rows=2, features=200, seed=7).acquisition
    assert all(np.array_equal(other[key], protocol[key][:200]) for key in protocol)


# -- pulses ------------------------------------------------------------------------------------


def test_a_pulse_is_where_how_wide_and_how_high_it_is_said_to_be():
    data = load("pulses", rows=200, features=2001, count=1, noise=0.0)
    time, (position, width, height) = data.acquisition["time"], data.parameters.values()
    inner = np.flatnonzero((np.abs(position - 0.5) < 0.3)[:, 0])
    X, position, width, height = data.X[inner], position[inner], width[inner], height[inner]
    np.testing.assert_allclose(time[X.argmax(axis=1)], position[:, 0], atol=1e-3)
    np.testing.assert_allclose(X.max(axis=1), height[:, 0], rtol=1e-3)
    area = X.sum(axis=1) * (time[1] - time[0])
    np.testing.assert_allclose(area, (height * width)[:, 0] * np.sqrt(2 * np.pi), rtol=1e-6)


def test_neighbours_of_a_series_tell_the_same():
    data = load("pulses", rows=4000)
    assert data.parameters["position"].shape == (4000, 3)
    correlation = np.corrcoef(data.X.T)
    assert np.diagonal(correlation, 1).min() > 0.9
    assert np.abs(np.diagonal(correlation, 100)).max() < 0.4


# -- gas sensors -------------------------------------------------------------------------------


def test_gas_sensors_span_orders_of_magnitude_and_have_heavy_tails():
    data = load("gas-sensors")
    assert data.X.shape == (5358, 128)
    variance = np.log10(data.X.var(axis=0))
    assert 10 < np.ptp(variance) < 12
    z = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)
    assert np.median((z**4).mean(axis=0)) > 10  # 3 if they were normal
    np.testing.assert_array_equal(data.X, load("gas-sensors").X)
    assert not np.array_equal(data.X, load("gas-sensors", seed=1).X)
    small = load("gas-sensors", rows=50, sensors=2)
    assert small.names[0] == "sensor 0: change"
    assert len(set(small.names)) == 16
    with pytest.raises(InputError, match="sensors=0 must be a whole number of at least 1"):
        load("gas-sensors", sensors=0)
