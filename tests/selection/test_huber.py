"""fewer.select(..., loss="huber")."""

import numpy as np
import pytest
from typer.testing import CliRunner

import fewer
from fewer.cli import app
from fewer.errors import InputError

OPTIONS = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def rows():
    """Five signals in 20 features; 2% of the rows are wild in features of their own."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(1200, 5))
    X = signal @ rng.normal(size=(5, 20)) + 0.1 * rng.normal(size=(1200, 20))
    train = X[:600].copy()
    wild = rng.choice(600, 12, replace=False)
    train[wild] += 30 * rng.standard_t(2, size=(12, 20))
    return train, X[600:]


def error(panel, X):
    return float(((panel.reconstruct(X[:, panel.indices]) - X) ** 2).mean())


def test_few_wild_rows_do_not_decide(rows):
    train, test = rows
    plain, huber = (fewer.select(train, 5, loss=loss, **OPTIONS) for loss in ("mse", "huber"))
    assert error(huber, test) < 0.5 * error(plain, test)
    assert huber.settings["loss"] == "huber"
    # the score counts all held-out rows alike, also wild ones
    assert huber.held_out < 0.9


def test_without_tails_it_hardly_matters(rows):
    clean = rows[1]
    plain, huber = (fewer.select(clean, 5, loss=loss, **OPTIONS) for loss in ("mse", "huber"))
    assert error(huber, clean) < 1.1 * error(plain, clean)


def test_missing_values_wide_data_and_folds(rows):
    train = rows[0].copy()
    train[np.random.default_rng(1).random(train.shape) < 0.05] = np.nan
    options = OPTIONS | {"validation": 3}
    plain, huber = (fewer.select(train, 5, loss=loss, **options) for loss in ("mse", "huber"))
    assert error(huber, rows[1]) < 0.5 * error(plain, rows[1])
    wide = np.hstack([rows[0][:30]] * 8)  # 30 x 160: kept as rows
    assert fewer.select(wide, 3, loss="huber", **options).k == 3


@pytest.mark.filterwarnings("ignore:the network does not clearly beat")
def test_networks_and_panels_that_are_changed(rows, tmp_path):
    options = OPTIONS | {"decoder": (8,)}
    few, new = rows[0][:300, :12], rows[1][:, :12]
    network = fewer.select(few, 4, loss="huber", **options)
    assert error(network, new) < error(fewer.select(few, 4, **options), new)
    linear = fewer.select(rows[0], 5, loss="huber", **OPTIONS)
    linear.save(tmp_path / "panel")
    loaded = fewer.attach(fewer.Panel.load(tmp_path / "panel"), rows[0])
    first, second = linear.shrink(4), loaded.shrink(4)
    np.testing.assert_array_equal(second.indices, first.indices)
    x = rows[1][:9, first.indices]
    np.testing.assert_allclose(second.reconstruct(x), first.reconstruct(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mae"}, "loss='mae' is not valid; use 'mse' or 'huber'"),
        ({"loss": "huber", "target": np.arange(600.0)}, "cannot be combined with target"),
    ],
)
def test_what_cannot_be_is_refused(rows, options, message):
    with pytest.raises(InputError, match=message):
        fewer.select(rows[0], 3, **options)


def test_command_and_the_command_that_makes_it_again(rows, tmp_path):
    path = tmp_path / "wild.csv"
    header = ",".join(f"f{j}" for j in range(20))
    np.savetxt(path, rows[0][:200], delimiter=",", header=header, comments="")
    words = ["select", str(path), "-k", "4", "--loss", "huber", "--strategies", "search"]
    words += ["--validation", "0.2", "--out", str(tmp_path / "panel"), "--quiet"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    panel = fewer.Panel.load(tmp_path / "panel")
    assert panel.settings["loss"] == "huber"
    shown = CliRunner().invoke(app, ["export", str(tmp_path / "panel"), "--to", "python"])
    assert "loss='huber'" in shown.output
    refused = CliRunner().invoke(app, [*words, "--loss", "l1", "--force"])
    assert refused.exit_code != 0
