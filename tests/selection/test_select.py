"""fewer.select and Panel as a user meets them."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.datasets import load_digits

import fewer
from fewer.constraints import resolve
from fewer.data import covariance
from fewer.data.source import array_source
from fewer.errors import FewerWarning, FileFormatError, InputError
from fewer.search import greedy, residual

NAMES = [f"pixel {j}" for j in range(64)]


@pytest.fixture(scope="module")
def frames(digits):
    return tuple(pd.DataFrame(part * 16, columns=NAMES) for part in digits)


@pytest.fixture(scope="module")
def panel(frames):
    return fewer.select(frames[0], k=10, scale="none", random_state=0)


def test_never_above_greedy_on_the_training_rows(frames, panel):
    C = covariance(array_source(frames[0].to_numpy())).matrix
    assert residual(C, panel.indices) < residual(C, greedy(C, 10).panel())
    assert panel.k == len(set(panel.features)) == 10
    assert panel.indices.tolist() == sorted(panel.indices)
    assert panel.features == [NAMES[j] for j in panel.indices]


def test_the_leaderboard_keeps_every_candidate(panel):
    board = panel.leaderboard
    assert {row["strategy"] for row in board} >= {"greedy", "search", "closed form, swaps"}
    errors = [row["error"] for row in board]
    assert errors == sorted(errors)
    assert all(len(row["features"]) == 10 and row["seconds"] >= 0 for row in board)
    assert "held-out error" in repr(board)
    assert "Panel of 10 of 64" in repr(panel)


def test_reconstructs_in_the_users_units_from_names_in_any_order(frames, panel):
    test = frames[1]
    whole = panel.reconstruct(test[panel.features[::-1]])
    assert list(whole.columns) == NAMES
    np.testing.assert_allclose(whole[panel.features], test[panel.features], atol=1e-6)
    expected = (
        1 - ((whole - test) ** 2).to_numpy().sum() / ((test - test.mean()) ** 2).to_numpy().sum()
    )
    score = panel.score(test)
    assert score == pytest.approx(expected)
    np.testing.assert_allclose(score.errors, ((whole - test) ** 2).mean().to_numpy(), atol=1e-9)
    assert abs(panel.held_out - score) < 0.1
    table = panel.reconstruct(pl.from_pandas(test[panel.features]))
    assert isinstance(table, pl.DataFrame)
    np.testing.assert_allclose(panel.reconstruct(test[panel.features].to_numpy()), whole)
    np.testing.assert_array_equal(panel.transform(test), test[panel.features])


def test_scaling_makes_units_irrelevant(frames):
    rng = np.random.default_rng(0)
    units = 10.0 ** rng.integers(-3, 4, size=24)
    rows = frames[0].iloc[:, 18:42]
    plain = fewer.select(rows, k=4, random_state=0)
    odd = fewer.select(rows * units + 5, k=4, random_state=0)
    assert plain.features == odd.features
    there = odd.reconstruct(frames[1][odd.features] * units[odd.indices] + 5)
    here = plain.reconstruct(frames[1][plain.features])
    np.testing.assert_allclose((there - 5) / units, here, atol=1e-5)


def test_intervals_cover_what_they_promise(frames, panel):
    test = frames[1]
    for share in (0.5, 0.9):
        middle, low, high = panel.reconstruct(test[panel.features], interval=share)
        assert (low.to_numpy() <= high.to_numpy() + 1e-12).all()
        inside = (test >= low - 1e-9) & (test <= high + 1e-9)
        varying = [name for name in NAMES if name not in panel.features and test[name].std() > 1]
        assert inside[varying].to_numpy().mean() == pytest.approx(share, abs=0.08)
        assert (middle[panel.features] - low[panel.features]).abs().to_numpy().max() == 0


def test_saving(tmp_path, frames, panel):
    panel.save(tmp_path / "panel")
    assert sorted(p.name for p in (tmp_path / "panel").iterdir()) == [
        "panel.json",
        "tensors.safetensors",
    ]
    again = fewer.Panel.load(tmp_path / "panel")
    measured = frames[1][panel.features]
    pd.testing.assert_frame_equal(again.reconstruct(measured), panel.reconstruct(measured))
    assert again.features == panel.features
    assert again.leaderboard == panel.leaderboard
    assert again.held_out == panel.held_out
    np.testing.assert_array_equal(again.held_out.errors, panel.held_out.errors)
    for ours, theirs in zip(
        again.reconstruct(measured, interval=0.8),
        panel.reconstruct(measured, interval=0.8),
        strict=True,
    ):
        pd.testing.assert_frame_equal(ours, theirs)
    with pytest.raises(FileFormatError, match=r"has no panel\.json"):
        fewer.Panel.load(tmp_path)


def test_a_network_decoder(frames, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        panel = fewer.select(
            frames[0].iloc[:80, 18:28], k=3, decoder=(6,), validation=0.2, random_state=0
        )
    names = {row["strategy"] for row in panel.leaderboard}
    assert names >= {"search", "gradient", "search, network swaps"}
    assert panel.score(frames[1].iloc[:, 18:28]) > 0.3
    panel.save(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p")
    measured = frames[1][panel.features]
    pd.testing.assert_frame_equal(again.reconstruct(measured), panel.reconstruct(measured))


def test_a_plain_warning_when_the_network_does_not_beat_linear():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 7)) + 0.1 * rng.normal(size=(60, 7))
    with pytest.warns(
        FewerWarning, match=r"does not clearly beat a linear decoder.*Use decoder='linear'"
    ):
        fewer.select(X, k=3, decoder=(4,), strategies=["search"], validation=0.2, random_state=0)


def test_a_custom_decoder_must_be_passed_again(frames, tmp_path):
    def deep(k, d):
        return torch.nn.Sequential(torch.nn.Linear(k, 20), torch.nn.Tanh(), torch.nn.Linear(20, d))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        panel = fewer.select(
            frames[0].iloc[:60, 18:26],
            2,
            decoder=deep,
            strategies=["search"],
            validation=0.2,
            random_state=0,
        )
    panel.save(tmp_path / "p")
    with pytest.raises(InputError, match=r"pass it again as load\(path, decoder="):
        fewer.Panel.load(tmp_path / "p")
    again = fewer.Panel.load(tmp_path / "p", decoder=deep)
    measured = frames[1][panel.features]
    pd.testing.assert_frame_equal(again.reconstruct(measured), panel.reconstruct(measured))


def test_constraints(frames):
    names = NAMES[10:40]
    rows = frames[0][names]
    costs = {name: 1 + j % 3 for j, name in enumerate(names)}
    panel = fewer.select(
        rows,
        None,
        include=["pixel 20"],
        exclude=["pixel 30"],
        costs=costs,
        budget=9,
        random_state=0,
    )
    constraints = resolve(names, 30, None, ["pixel 20"], ["pixel 30"], costs=costs, budget=9)
    constraints.check(panel.indices)
    grouped = fewer.select(rows, 3, groups=[names[:8], names[8:16]], random_state=0)
    resolve(names, 30, 3, groups=[names[:8], names[8:16]]).check(grouped.indices)


def test_a_given_panel_is_only_fitted(frames):
    mine = NAMES[10:60:10]
    panel = fewer.select(frames[0], len(mine), include=mine, random_state=0)
    assert panel.features == mine
    assert [row["strategy"] for row in panel.leaderboard] == ["only choice"]
    assert panel.held_out > 0.1


def test_cost_weight_trades_error_for_cost(frames):
    free = fewer.select(frames[0], 4, random_state=0)
    costs = np.ones(64)
    costs[free.indices] = 9.0
    frugal = fewer.select(frames[0], 4, costs=costs, cost_weight=0.01, random_state=0)
    assert costs[frugal.indices].sum() < costs[free.indices].sum()
    rows = frugal.leaderboard
    priced = [
        row["error"] + 0.01 * costs[[NAMES.index(f) for f in row["features"]]].sum() for row in rows
    ]
    assert priced[0] == pytest.approx(min(priced))


def test_rows_may_come_from_a_file(frames, tmp_path):
    rows = frames[0].iloc[:, 18:42]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    panel = fewer.select(tmp_path / "rows.csv", 4, random_state=0)
    assert panel.features == fewer.select(rows, 4, random_state=0).features


def test_few_rows_get_folds_and_penalties(frames):
    options = {"strategies": ["search"], "validation": 3}
    few, test = frames[0].iloc[:40, 16:34], frames[1].iloc[:, 16:34]
    panel = fewer.select(few, k=5, scale="none", random_state=0, **options)
    assert any("ridge" in row["strategy"] for row in panel.leaderboard)
    plain = fewer.ColumnSubset(5, random_state=0).fit(few)
    assert panel.score(test) > plain.score(test)


def test_very_few_rows_are_judged_by_their_held_out_error(frames, capsys):
    names = NAMES[16:34]
    few, test, mine = frames[0][:40][names], frames[1][names], NAMES[20]
    rules = {"include": [mine], "exclude": names[:4], "random_state": 0}
    options = {"scale": "none", "strategies": ["search"], "validation": 3}
    panel = fewer.select(few, 6, progress=True, **rules, **options)
    assert "swaps on held-out error" in capsys.readouterr().out
    assert mine in panel.features
    assert not {*names[:4]} & {*panel.features}
    plain = fewer.ColumnSubset(6, **rules).fit(few)
    assert panel.score(test) > plain.score(test)


def test_rows_of_a_group_are_held_out_together(frames):
    labels = np.arange(200) // 20
    rows = frames[0].iloc[:200, 18:34]
    panel = fewer.select(
        rows, k=3, row_groups=labels, validation=5, strategies=["search"], random_state=0
    )
    assert panel.settings["rows"] == 200
    with pytest.raises(InputError, match="row_groups has 3 labels for 200 rows"):
        fewer.select(rows, k=3, row_groups=[1, 2, 3])


def test_missing_values_and_sparse_rows(digits):
    from scipy import sparse

    X, test = digits[0][:, 18:38].copy(), digits[1][:, 18:38]
    thin = fewer.select(sparse.csr_array(X), k=4, random_state=0)
    dense = fewer.select(X, k=4, random_state=0)
    assert thin.features == dense.features
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    gaps = fewer.select(X, k=4, random_state=0)
    assert gaps.score(test) > dense.score(test) - 0.05


def test_time_limit_and_progress(frames, capsys):
    panel = fewer.select(frames[0], k=10, time_limit=0.01, progress=True, random_state=0)
    assert len(panel.features) == 10
    assert "greedy: held-out error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"k": 65}, "65"),
        ({"k": None}, "k and budget are both None"),
        ({"k": 3, "strategies": ["magic"]}, "use 'auto' or some of search, closed_form, gradient"),
        ({"k": 3, "scale": "log"}, "scale='log' is not valid; use 'standard' or 'none'"),
        ({"k": 3, "validation": 1.5}, "validation=1.5 must be a fraction between 0 and 1"),
        ({"k": 3, "validation": 1}, "validation=1 must be"),
        ({"k": 3, "include": ["pixle 3"]}, "pixel 3"),
        ({"k": 3, "decoder": "deep"}, "decoder='deep' is not valid"),
        ({"k": 3, "device": "abacus"}, "device='abacus' cannot be used here"),
    ],
)
def test_bad_input_is_named(frames, options, message):
    with pytest.raises(InputError, match=message):
        fewer.select(frames[0][:50], **options)


def test_few_rows_and_unusual_groups():
    X = np.random.default_rng(0).normal(size=(40, 5))
    assert fewer.select(X[:4], 1, random_state=0).k == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerWarning)
        assert fewer.select(X[:4], 2, decoder=(4,), random_state=0, time_limit=0.5).k == 2
    two = np.arange(40) % 2
    assert fewer.select(X, 2, row_groups=two, validation=0.9, random_state=0).k == 2
    with pytest.raises(InputError, match="row_groups has a single label"):
        fewer.select(X, 2, row_groups=np.zeros(40))
    with pytest.raises(InputError, match=r"row_groups has shape \(40, 2\)"):
        fewer.select(X, 2, row_groups=np.zeros((40, 2)))
    for limit in ("1", -1, 0):
        with pytest.raises(InputError, match="time_limit="):
            fewer.select(X, 2, time_limit=limit)


def test_bad_rows_are_named(frames, panel):
    with pytest.raises(InputError, match="X lacks 1 of the 64 features: 'pixel 63'"):
        panel.score(frames[1].drop(columns="pixel 63"))
    with pytest.raises(InputError, match="X has 3 columns; the panel was made for 64"):
        panel.score(np.zeros((2, 3)))
    with pytest.raises(InputError, match="lacks 1 of the 10 chosen features"):
        panel.reconstruct(frames[1][panel.features[1:]])
    with pytest.raises(InputError, match=r"interval=2 must be above 0 and at most 0\.99"):
        panel.reconstruct(frames[1][panel.features], interval=2)


def test_k_beyond_the_rank_warns_and_still_works(frames):
    few = frames[0].iloc[:, :10].copy()
    few.iloc[:, 5:] = 1.0
    with pytest.warns(FewerWarning, match=r"k=8, but only \d of 10 features vary"):
        panel = fewer.select(few, 8, random_state=0)
    assert panel.k == 8


def test_empty_and_text_columns_are_left_out_by_name(tmp_path):
    table = load_digits(as_frame=True).data.iloc[:300, 1:20]
    table.insert(3, "blank", np.nan)
    table.insert(0, "who", [f"row {i}" for i in range(300)])
    table.to_csv(tmp_path / "rows.csv", index=False)
    for data in (table, tmp_path / "rows.csv"):
        with pytest.warns(FewerWarning) as told:
            panel = fewer.select(data, 3, strategies=["search"], random_state=0)
        said = " ".join(str(warning.message) for warning in told)
        assert "non-numeric columns were ignored (1): 'who'" in said
        assert "columns without any value were ignored (1): 'blank'" in said
        assert panel.d == 19
        assert "blank" not in panel.names
    nameless = table.drop(columns="who").to_numpy()
    with pytest.raises(InputError, match=r"columns without any value, only NaN \(1\): 3; drop"):
        fewer.select(nameless, 3)


def test_progress_can_be_a_function():
    told = []
    X = load_digits().data[:200, 18:38]
    fewer.select(X, 3, random_state=0, progress=lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.5 < shares[-1] < 1
    assert any("search" in what for what, _ in told)


@pytest.mark.parametrize("decoder", ["linear", (16,)])
def test_measured_features_are_returned_unchanged(decoder):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 8)) + 0.3 * rng.normal(size=(80, 8))
    options = {"random_state": 0, "strategies": ["search"], "validation": 0.2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fewer.errors.FewerWarning)
        panel = fewer.select(X, 4, decoder=decoder, **options)
    measured = X[:5, panel.indices]
    np.testing.assert_array_equal(panel.reconstruct(measured)[:, panel.indices], measured)
    # a gap takes what the decoder makes of the others
    measured[0, 1] = np.nan
    rebuilt = panel.reconstruct(measured)
    assert np.isfinite(rebuilt).all()
    assert panel.held_out.errors[panel.indices].max() == 0
    assert panel.held_out.errors.max() > 0


def test_a_feature_that_varies_in_held_out_rows_alone_does_not_drown_the_others(frames):
    rare = np.zeros(len(frames[0]))
    rare[::7] = 1e6 * (np.arange(len(rare))[::7] % 2)
    groups = np.where(np.arange(len(rare)) % 7 == 0, "with", "without")
    table = frames[0].assign(rare=rare)
    options = {"row_groups": groups, "validation": 2, "strategies": ["search"]}
    with pytest.warns(FewerWarning, match="column 'rare'.*look for outliers"):
        panel = fewer.select(table, 2, random_state=0, **options)
    assert panel.leaderboard[0]["error"] < 2  # in standard deviations: 1 is as good as means
