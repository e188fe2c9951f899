"""What a panel keeps of its making."""

import json

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

import fewer
from fewer.errors import FileFormatError
from fewer.report.summarise import summarise
from fewer.reproduce import python_of as call
from fewer.search import residual
from fewer.selection.record import describe_options


@pytest.fixture(scope="module")
def frame():
    return load_digits(as_frame=True).data


@pytest.fixture(scope="module")
def panel(frame):
    return fewer.select(frame, k=8, scale="none", random_state=0)


def covariance(frame):
    return np.cov(frame.to_numpy().T, bias=True)


def test_the_panel_beats_chance_and_not_the_bound(panel):
    shares = panel.evidence.explained["units"]
    assert shares["panel"] == pytest.approx(panel.held_out)
    assert shares["random"] < shares["greedy"] <= shares["panel"] < shares["pca"]


def test_gains_are_those_of_each_next_feature(panel, frame):
    known, C = panel.evidence, covariance(frame)
    assert sorted(known.order) == panel.indices.tolist()
    for size in (1, 3, 8):
        explained = 1 - residual(C, known.order[:size]) / np.trace(C)
        assert known.gains[:size].sum() == pytest.approx(explained)


def test_the_best_substitute_is_the_best_swap(panel, frame):
    known, C = panel.evidence, covariance(frame)
    whole = residual(C, panel.indices)
    place = 2
    rest = np.delete(known.order, place)
    swaps = {j: residual(C, [*rest, j]) for j in range(64) if j not in panel.indices}
    best = min(swaps, key=swaps.__getitem__)
    assert known.substitutes[place, 0] == best
    loss = (swaps[best] - whole) / np.trace(C)
    assert known.losses[place, 0] == pytest.approx(max(loss, 0), abs=1e-6)


def test_substitutes_may_be_chosen(frame):
    shut = ["pixel_4_4", "pixel_2_4"]
    some = frame.iloc[:, 16:48]
    known = fewer.select(some, k=4, exclude=shut, random_state=0).evidence
    barred = [some.columns.get_loc(name) for name in shut]
    assert not np.isin(barred, known.substitutes).any()


def test_related_features_correlate_most(panel, frame):
    known = panel.evidence
    correlation = frame.corr().to_numpy()
    for place, j in enumerate(known.order):
        others = np.abs(np.delete(correlation[j], j))
        assert abs(known.related_correlation[place, 0]) == pytest.approx(
            np.nanmax(others), abs=1e-6
        )
        assert known.related_correlation[place, 0] == pytest.approx(
            correlation[j, known.related[place, 0]], abs=1e-6
        )
    inside = correlation[np.ix_(known.order, known.order)]
    np.testing.assert_allclose(known.correlation, inside, atol=1e-6)
    varying = int((frame.std() > 0).sum())
    assert known.represents.sum() == varying - panel.k


def test_held_out_rows_are_stored_with_their_reconstructions(panel, frame):
    known = panel.evidence
    whole = {row.tobytes() for row in frame.to_numpy().astype(np.float32)}
    assert 100 < len(known.rows) <= 200
    assert all(row.tobytes() in whole for row in known.rows)
    measured = panel.indices
    np.testing.assert_array_equal(known.reconstructed[:, measured], known.rows[:, measured])
    wrong = (known.reconstructed - known.rows).astype(float) ** 2
    assert wrong.mean() == pytest.approx(known.errors.mean(), rel=0.1)  # some rows of each fold
    assert known.errors.mean() == pytest.approx(panel.held_out.errors.mean(), rel=0.1)
    assert not known.errors[measured].any()


def test_training_history_is_stored(digits):
    X = digits[0][:400, 16:40]
    panel = fewer.select(X, 4, strategies=["closed_form", "gradient"], random_state=0)
    history = panel.evidence.history
    assert set(history) == {"closed form", "gradient"}
    for rows in history.values():
        assert 2 <= len(rows) <= 200
        assert rows[-1]["mean_max_probability"] > rows[0]["mean_max_probability"]
        assert {"temperature", "loss", "distinct"} <= set(rows[0])


def test_the_data_are_described(tmp_path, frame):
    gappy = frame.iloc[:300, :24].copy()
    gappy.iloc[:30, 10] = np.nan
    gappy.to_csv(tmp_path / "rows.csv", index=False)
    path = tmp_path / "rows.csv"
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    source = fewer.select(path, 3, **options).evidence.source
    assert source["path"] == str(path)
    assert source["kind"] == ".csv file"
    assert (source["rows"], source["columns"]) == (300, 24)
    assert source["missing"] == pytest.approx(30 / (300 * 24))
    assert fewer.select(gappy, 3, **options).evidence.source["kind"] == "pandas.DataFrame"


def test_saved_and_loaded_it_is_the_same(panel, tmp_path):
    panel.save(tmp_path / "panel")
    known, back = panel.evidence, fewer.Panel.load(tmp_path / "panel").evidence
    assert back.explained == known.explained
    assert back.created == known.created
    assert back.options == known.options
    for name in ("order", "gains", "losses", "related", "rows", "reconstructed", "variance"):
        np.testing.assert_array_equal(getattr(back, name), getattr(known, name))


def without(folder, part):
    """Take a tensor, or the whole of the evidence, out of a saved panel."""
    tensors = load_file(folder / "tensors.safetensors")
    kept = {name: value.clone() for name, value in tensors.items() if not name.startswith(part)}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "tensors.safetensors")


def test_panels_saved_before_there_was_evidence_load(panel, tmp_path):
    panel.save(tmp_path / "old")
    without(tmp_path / "old", "evidence.")
    about = json.loads((tmp_path / "old" / "panel.json").read_text())
    del about["evidence"]
    (tmp_path / "old" / "panel.json").write_text(json.dumps(about))
    old = fewer.Panel.load(tmp_path / "old")
    assert old.evidence is None
    assert old.features == panel.features
    old.save(tmp_path / "again")
    assert fewer.Panel.load(tmp_path / "again").evidence is None


def test_damaged_evidence_is_refused(panel, tmp_path):
    panel.save(tmp_path / "panel")
    without(tmp_path / "panel", "evidence.gains")
    with pytest.raises(FileFormatError, match="gains"):
        fewer.Panel.load(tmp_path / "panel")


def test_the_stored_call_reproduces_the_panel(frame):
    data = frame.iloc[:400, 16:32]
    labels = np.arange(400) // 10
    panel = fewer.select(
        data,
        k=4,
        include=["pixel_2_2"],
        exclude=[15],
        costs=np.ones(16),
        budget=10,
        row_groups=labels,
        validation=0.2,
        strategies=["search"],
        random_state=7,
    )
    text = call(panel.evidence)
    assert "row_groups=row_groups" in text  # too long to spell out
    names = {"data": data, "row_groups": labels, "costs": np.ones(16)}
    lines = [line for line in text.splitlines() if "= ..." not in line]
    exec("\n".join(lines), names)
    assert names["panel"].features == panel.features
    assert "another run" in call(fewer.select(data, 2).evidence)


def test_functions_and_long_values_are_only_named():
    def decoder(k, out):
        import torch

        return torch.nn.Linear(k, out)

    options = {
        "decoder": decoder,
        "row_groups": pd.Series(np.arange(3000)),
        "costs": np.array([1.0, np.inf]),
        "random_state": np.random.RandomState(0),
        "target": np.arange(5),
    }
    found = describe_options(options)
    json.dumps(found, allow_nan=False)
    assert found["decoder"]["function"].endswith("decoder")
    assert found["row_groups"] == {"object": "3000 values"}
    assert found["target"] == {"object": "5 values"}


def test_rows_can_be_left_out(panel, tmp_path):
    bare = fewer.Panel(
        panel.reconstructor,
        held_out=panel.held_out,
        leaderboard=panel.leaderboard,
        settings=panel.settings,
        evidence=panel.evidence.without_rows(),
    )
    bare.save(tmp_path / "panel")
    assert fewer.Panel.load(tmp_path / "panel").evidence.rows.shape == (0, 64)
    text = bare.report(tmp_path / "x.html").read_text(encoding="utf-8")
    assert "rows of the data" not in text
    assert "rows of the data" in panel.report(tmp_path / "y.html").read_text(encoding="utf-8")


def test_rows_held_out_one_by_one_are_scored_together(frame):
    X = frame.iloc[:16, 18:28].to_numpy()
    one_by_one = fewer.select(X, 3, strategies=["search"], validation=16, random_state=0)
    fifths = fewer.select(X, 3, strategies=["search"], validation=4, random_state=0)
    assert one_by_one.held_out > 0.2
    assert one_by_one.held_out.errors.sum() == pytest.approx(fifths.held_out.errors.sum(), rel=0.3)


def test_few_groups_of_rows_are_not_tested_against_chance(tmp_path):
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 2)) @ random.normal(size=(2, 6)) + random.normal(size=(60, 6))
    options = {"strategies": ["search"], "validation": 3, "random_state": 0}
    few, many = (
        fewer.select(X, 2, row_groups=np.arange(60) % count, **options) for count in (3, 30)
    )
    assert few.evidence.significance["contributions"] is None
    assert few.evidence.significance["random"]
    few.save(tmp_path / "panel")
    about = summarise(fewer.Panel.load(tmp_path / "panel"))
    assert (
        "not tested: the test uses one row per group of rows, and 3 groups are too few"
        in (about["contributions"]["sentence"])
    )
    assert "3 groups of rows are too few to test" in about["size"]["sentence"]
    assert "chance" not in about["size"]["sentence"].replace("for chance", "")
    assert fewer.select(X, "auto", row_groups=np.arange(60) % 3, **options).settings["k"] > 1
    assert len(many.evidence.significance["contributions"]) == 2
    assert "few_groups" not in many.evidence.size
