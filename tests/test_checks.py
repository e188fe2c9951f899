"""Panel.check: faults are found as what they are; clean rows are not suspected."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fewer import Panel, select
from fewer.errors import InputError


def sensors(n, seed):
    random = np.random.default_rng(seed)
    hidden = np.exp(0.5 * random.normal(size=(n, 3)))
    mixed = hidden @ np.random.default_rng(0).random((3, 10))
    return 5 + (mixed + 0.1 * random.normal(size=mixed.shape)) * np.logspace(0, 2, 10)


@pytest.fixture(scope="module")
def panel():
    return select(sensors(1200, 0), 4, strategies=["search"], validation=5, random_state=0)


@pytest.fixture
def new(panel):
    return sensors(500, 1)[:, panel.indices]


def spoil_unit(x):
    x[:, 1] *= 1000


def spoil_small_unit(x):
    x[:, 1] /= 10


def spoil_offset(x):
    x[:, 1] += 1.5 * x[:, 1].std()


def spoil_scale(x):
    x[:, 1] = 1.8 * x[:, 1] + 32


def spoil_stuck(x):
    x[300:, 1] = x[300, 1]


def spoil_sentinel(x):
    x[::60, 1] = -999


def spoil_sentinel_inside(x):
    x[::40, 1] = np.round(x[:, 1].mean(), 1)


def spoil_missing(x):
    x[::10, 1] = np.nan


def spoil_range(x):
    x[:8, 1] = x[:, 1].max() + np.linspace(0.2, 1, 8) * x[:, 1].std()


def spoil_shape(x):
    random = np.random.default_rng(0)
    step = random.choice([-1, 1], len(x)) * random.uniform(0.8, 1.2, len(x))
    x[:, 1] = x[:, 1].mean() + x[:, 1].std() * (1 + step)  # two modes


@pytest.mark.parametrize(
    ("spoil", "kind", "says"),
    [
        (spoil_unit, "unit", "multiplied by 1000"),
        (spoil_small_unit, "unit", "divided by 10"),
        (spoil_offset, "offset", "shifted by"),
        (spoil_scale, "scale", "times the former"),
        (spoil_stuck, "stuck", "for 200 rows"),
        (spoil_sentinel, "sentinel", "-999 occurs 9 times"),
        (spoil_sentinel_inside, "sentinel", "occurs 13 times"),
        (spoil_missing, "missing", "10.0% of the values are missing"),
        (spoil_range, "range", "10 values are outside of the training range"),
        (spoil_shape, "shift", "the mean is shifted by +"),
    ],
)
def test_a_fault_is_found_as_what_it_is(panel, new, spoil, kind, says):
    spoil(new)
    found = panel.check(new)
    assert [(one.feature, one.kind) for one in found.findings] == [(panel.features[1], kind)]
    assert says in str(found)
    assert not found.ok
    assert kind in str(found.describe())


@pytest.mark.parametrize("many", [2, 200])
def test_swapped_columns_are_found_and_named(panel, new, monkeypatch, many):
    monkeypatch.setattr("fewer.checks.MANY_FEATURES", many)
    new[:, [0, 2]] = new[:, [2, 0]]
    (finding,) = panel.check(new).findings
    assert finding.kind == "swapped"
    assert f"{panel.features[0]} and {panel.features[2]}" in finding.message


def test_without_batches_the_shift_of_every_feature_is_a_bar(panel, new):
    spoil_offset(new)
    found = panel.check(new[:30])
    bars = [bar.get_width() for bar in found.plot().patches]
    np.testing.assert_allclose(bars, found.columns()["shift"])
    assert np.argmax(bars) == 1


def test_rows_whose_features_do_not_go_together(panel, new):
    # every feature alone looks as it did
    shuffled = np.stack([np.random.default_rng(j).permutation(x) for j, x in enumerate(new.T)], 1)
    (finding,) = panel.check(shuffled).findings
    assert finding.kind == "rows"
    assert "do not go together" in finding.message


def test_clean_rows_are_rarely_suspected(panel):
    alarms = [not panel.check(sensors(500, seed)[:, panel.indices]).ok for seed in range(2, 42)]
    assert sum(alarms) <= 2


def test_p_values_are_calibrated_also_with_missing_values(panel):
    rows = sensors(4000, 50)[:, panel.indices]
    gappy = rows.copy()
    gappy[:, 3] = np.nan
    for values in (rows, gappy):
        p = panel.check(values).p
        assert 0.03 < (p < 0.05).mean() < 0.08
        assert p.min() > 0
    expected = panel.check(gappy).expected_error.mean() / panel.check(rows).expected_error.mean()
    assert expected > 1.1
    truth = sensors(4000, 50)
    wrong = ((panel.reconstruct(rows) - truth) ** 2 / truth.var(axis=0)).mean()
    assert panel.check(rows).expected_error.mean() == pytest.approx(wrong, rel=0.15)


def test_few_rows_and_old_panels(panel, new, tmp_path):
    assert panel.check(new[:1]).rows == 1
    assert panel.check(np.full((3, 4), np.nan)).findings
    panel.save(tmp_path / "panel")
    again = Panel.load(tmp_path / "panel").check(new)
    np.testing.assert_allclose(again.p, panel.check(new).p)
    old = Panel.load(tmp_path / "panel")
    old.reconstructor = replace(old.reconstructor, statistics=None)
    with pytest.raises(InputError, match=r"saved by an earlier build.*recreate it"):
        old.check(new)


def test_strict_imputation_writes_nothing(panel, new, tmp_path):
    assert panel.impute(new, strict=True).shape == (500, 10)
    spoil_unit(new)
    with pytest.raises(InputError, match=r"1 finding in 500 rows: .*multiplied by 1000"):
        panel.impute(new, strict=True, out=tmp_path / "all.csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("upper", [True, False])
def test_the_short_way_for_one_value_is_the_general_one(upper):
    from fewer.checks import _ks

    reference = np.sort(np.random.default_rng(0).normal(size=201).round(1))
    for value in [-9.0, reference[0], -0.5, 0.0, 0.04, 1.2, reference[-1], 9.0]:
        # twice the same value has the same distribution function, and twice the count
        short = _ks(reference, 10**12, np.array([value]), upper=upper)
        general = _ks(reference, 10**12, np.array([value, value]), upper=upper)
        assert short[0] == pytest.approx(general[0])
        assert short[1] >= general[1]


# -- drift ---------------------------------------------------------------------------------------


def drifting(panel, X):
    new = X[1::2].copy()
    name = panel.features[1]
    new[name] += np.linspace(0, 3, len(new)) * X[name].std()
    return new


def test_drift_is_described_by_batch(drift_panel):
    panel, X = drift_panel
    new = drifting(panel, X)
    drift = panel.check(new, batches=5).drift
    assert drift.rows == [57, 57, 57, 57, 56]
    assert drift.movers[0] == 1
    steps = np.diff(drift.shift[:, 1])
    assert (steps > 0.2).all()
    expected = (new[panel.features[1]][:57].mean() - X[::2][panel.features[1]].mean()) / X[::2][
        panel.features[1]
    ].std(ddof=0)
    assert drift.shift[0, 1] == pytest.approx(expected)


def test_batches_by_label_and_too_few_rows(drift_panel):
    panel, X = drift_panel
    new = X[1::2]
    days = np.where(np.arange(len(new)) < 100, "monday", "tuesday")
    drift = panel.check(new, batches=days).drift
    assert (drift.labels, drift.rows) == (["monday", "tuesday"], [100, 184])
    assert panel.check(new[:30]).drift is None
    with pytest.raises(InputError, match=r"batches has the shape \(2,\)"):
        panel.check(new, batches=["a", "b"])


def test_a_batch_without_values_has_no_shift(drift_panel):
    panel, X = drift_panel
    new = X[1::2].copy()
    new.iloc[:142, new.columns.get_loc(panel.features[0])] = np.nan
    drift = panel.check(new, batches=2).drift
    assert np.isnan(drift.shift[0, 0])
    assert np.isfinite(drift.shift[1]).all()


def test_the_report_on_new_rows_shows_their_drift(drift_panel, tmp_path):
    panel, X = drift_panel
    page = panel.report(tmp_path / "page.html", drifting(panel, X)).read_text()
    assert "Check of the additional rows" in page
    assert "Shift of the mean of 4 features over 10 batches" in page
    assert "Check of the additional rows" not in panel.report(tmp_path / "plain.html").read_text()


@pytest.fixture(scope="module")
def drift_panel():
    X = load_breast_cancer(as_frame=True).data
    return select(X[::2], 4, strategies=["search"], validation=0.3, random_state=0), X
