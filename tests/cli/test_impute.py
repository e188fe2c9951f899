"""fewer impute: measured features in, all features out."""

import numpy as np
import pandas as pd
import pytest

import fewer

anndata = pytest.importorskip("anndata", reason="anndata is not installed")


@pytest.fixture
def measured(folder, made_panel):
    """Only what the panel needs, in another order, with identifiers and a gap."""
    panel = fewer.Panel.load(made_panel)
    table = pd.read_csv("test.csv").iloc[:50]
    table["code"] = 1000 + np.arange(50)[::-1] * 7  # numbers too can be identifiers
    table = table[["who", *panel.features[::-1], "code"]]
    table.loc[4, panel.features[1]] = np.nan
    table.to_csv("measured.csv", index=False)
    return table


def test_all_features_of_the_same_rows(measured, made_panel, asked):
    panel = fewer.Panel.load(made_panel)
    found = asked("impute", made_panel, "measured.csv", "--out", "all.csv")
    assert (found["rows"], found["features"], found["measured"]) == (50, panel.d, 3)
    table = pd.read_csv("all.csv")
    assert list(table.columns) == ["who", "code", *panel.names]
    assert table["who"].tolist() == measured["who"].tolist()
    assert table["code"].tolist() == measured["code"].tolist()
    expected = panel.reconstruct(measured[panel.features])
    np.testing.assert_allclose(table[panel.names], expected[panel.names], rtol=1e-9)
    assert not table.isna().any().any()
    kept = measured[panel.features].notna().to_numpy()
    np.testing.assert_allclose(
        table[panel.features].to_numpy()[kept], measured[panel.features].to_numpy()[kept]
    )


@pytest.mark.parametrize("name", ["all.parquet", "all.feather", "all.tsv", "all.csv.gz", "all.npy"])
def test_other_formats_hold_the_same_numbers(measured, made_panel, typed, name):
    typed("impute", made_panel, "measured.csv", "--out", name)
    panel = fewer.Panel.load(made_panel)
    expected = panel.reconstruct(measured[panel.features])
    readers = {
        "parquet": pd.read_parquet,
        "feather": pd.read_feather,
        "tsv": lambda path: pd.read_csv(path, sep="\t"),
        "gz": lambda path: pd.read_csv(path, compression="gzip"),
        "npy": lambda path: pd.DataFrame(np.load(path), columns=panel.names),
    }
    table = readers[name.rpartition(".")[2]](name)
    np.testing.assert_allclose(table[panel.names], expected[panel.names], rtol=1e-9)
    if not name.endswith("npy"):
        assert table["who"].tolist() == measured["who"].tolist()


def test_the_default_output_is_next_to_the_input(measured, made_panel, asked, refused):
    assert asked("impute", made_panel, "measured.csv")["out"] == "measured.complete.csv"
    line = refused("impute", made_panel, "measured.csv")
    assert line.startswith(
        "measured.complete.csv exists; choose another name, or overwrite it with"
    )
    assert asked("impute", made_panel, "measured.csv", "--force")["rows"] == 50


@pytest.mark.parametrize("limit", [None, "20kB"])
def test_bounds_hold_the_share_that_they_promise(folder, made_panel, asked, limit):
    panel = fewer.Panel.load(made_panel)
    few = ["--replace-measured", *(["--memory-limit", limit] if limit else [])]
    found = asked("impute", made_panel, "test.csv", "--out", "all.csv", "--interval", "0.9", *few)
    assert found["bounds"] == ["all.lower.csv", "all.upper.csv"]
    low, rebuilt, high = (
        pd.read_csv(name)[panel.names] for name in ("all.lower.csv", "all.csv", "all.upper.csv")
    )
    truth = pd.read_csv("test.csv")[panel.names]
    others = [name for name in panel.names if name not in panel.features]
    inside = ((truth >= low) & (truth <= high))[others].to_numpy()[truth[others].notna()]
    assert 0.85 < inside.mean() < 0.95
    assert (low[others] < high[others]).all().all()
    gaps = truth[panel.features].isna()
    assert (low < high)[panel.features].equals(gaps)  # what was missing has bounds, too
    known = ~gaps
    assert (low[panel.features][known].fillna(0) == rebuilt[panel.features][known].fillna(0)).all(
        axis=None
    )


def test_what_was_measured_is_kept(folder, made_panel, typed, asked):
    panel = fewer.Panel.load(made_panel)
    given = pd.read_csv("test.csv")
    others = [name for name in panel.names if name not in panel.features]
    given.loc[3, others[0]] = np.nan
    given.to_csv("test.csv", index=False)
    found = asked("impute", made_panel, "test.csv", "--out", "kept.csv")
    kept = pd.read_csv("kept.csv")[panel.names]
    known = given[panel.names].notna()
    pd.testing.assert_frame_equal(kept.where(known), given[panel.names])
    expected = panel.reconstruct(given[panel.features])
    assert kept.loc[3, others[0]] == pytest.approx(expected.loc[3, others[0]])
    assert found["kept"] == known[others].sum().sum() > 0
    # other features help where they were measured
    typed("impute", made_panel, "test.csv", "--out", "used.csv", "--use-all")
    used = pd.read_csv("used.csv")[panel.names]
    pd.testing.assert_frame_equal(used.where(known), given[panel.names])
    assert used.loc[3, others[0]] != kept.loc[3, others[0]]
    again = asked("impute", made_panel, "test.csv", "--out", "again.csv", "--replace-measured")
    assert again["kept"] == 0
    replaced = pd.read_csv("again.csv")[panel.names]
    np.testing.assert_allclose(replaced, expected[panel.names], rtol=1e-9)


def test_one_line_says_what_was_missing(measured, made_panel, typed, asked, refused):
    panel = fewer.Panel.load(made_panel)
    gaps = int(measured[panel.features].isna().sum().sum())
    assert asked("impute", made_panel, "measured.csv", "--out", "a.csv")["missing"] == gaps
    shown = typed("impute", made_panel, "measured.csv", "--out", "b.csv").stdout
    line = f"{gaps} of 150 values of the panel's features were missing, in {gaps} row"
    line += ", and " if gaps == 1 else "s, and "
    assert line + "predicted from the values present" in shown
    gone = panel.features[0]
    measured.drop(columns=gone).to_csv("lacking.csv", index=False)
    said = refused("impute", made_panel, "lacking.csv", "--out", "c.csv")
    assert f"lacks 1 of the 3 chosen features: '{gone}'" in said
    assert "(--allow-absent)" in said
    shown = typed("impute", made_panel, "lacking.csv", "--out", "c.csv", "--allow-absent").stdout
    assert f"not in the data: '{gone}'" in shown
    expected = panel.reconstruct(measured.assign(**{gone: np.nan})[panel.features])
    np.testing.assert_allclose(pd.read_csv("c.csv")[panel.names], expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside anndata
@pytest.mark.filterwarnings("ignore:The .mode.chained_assignment. option")
def test_cells_keep_their_names_and_obs(folder, typed, tumours):
    names = [f"gene{j}" for j in range(8)]
    rows = tumours.iloc[:200, 2:10].fillna(0).to_numpy()
    obs = pd.DataFrame({"kind": ["a", "b"] * 100}, index=[f"cell {i}" for i in range(200)])
    cells = anndata.AnnData(rows, obs=obs, var=pd.DataFrame(index=names))
    for frame in (cells.obs, cells.var):  # this anndata cannot write the newest string type
        frame.index = frame.index.astype(object)
    cells.obs["kind"] = cells.obs["kind"].astype(object)
    cells.write_h5ad("cells.h5ad")
    typed("select", "cells.h5ad", "-k", "3", "--strategies", "search", "--device", "cpu")
    typed("impute", "panel", "cells.h5ad", "--out", "all.h5ad", "--replace-measured")
    done = anndata.read_h5ad("all.h5ad")
    assert done.obs_names.tolist() == obs.index.tolist()
    assert done.obs["kind"].astype(str).tolist() == obs["kind"].tolist()
    assert done.var_names.tolist() == names
    panel = fewer.Panel.load("panel")
    np.testing.assert_allclose(done.X, panel.reconstruct(rows[:, panel.indices]), rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "measured.csv"], "there is no panel nowhere; create one with fewer select"),
        ([".", "measured.csv"], "is not a saved panel: it has no panel.json"),
        (["PANEL", "gone.csv"], "there is no file 'gone.csv'"),
        (["PANEL", "lacking.csv"], "measured lacks 1 of the 3 chosen features"),
        (["PANEL", "measured.csv", "--out", "all.docx"], "ends in '.docx'; use .npy"),
        (
            ["PANEL", "measured.csv", "--out", "measured.csv/all.csv"],
            "csv is not a folder",
        ),
        (
            ["PANEL", "measured.csv", "--interval", "2"],
            "--interval 2.0 must be above 0 and at most",
        ),
    ],
)
def test_impossible_requests_are_one_line_errors(
    measured, folder, made_panel, refused, words, message
):
    panel = fewer.Panel.load(made_panel)
    measured.drop(columns=panel.features[0]).to_csv("lacking.csv", index=False)
    before = sorted(path.name for path in folder.iterdir())
    assert message in refused("impute", *(made_panel if w == "PANEL" else w for w in words))
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_sheet_is_completed_into_a_csv_beside_it(folder, made_panel, typed):
    pd.read_csv("test.csv").to_excel("test.xlsx", index=False, sheet_name="May")
    typed("impute", made_panel, "test.xlsx", "--dataset", "May")
    typed("impute", made_panel, "test.csv", "--out", "plain.csv")
    found, plain = pd.read_csv("test.complete.csv"), pd.read_csv("plain.csv")
    assert list(found.columns) == list(plain.columns)
    np.testing.assert_allclose(found["mean_area"], plain["mean_area"])
    assert found["who"].tolist() == plain["who"].tolist()


def test_standard_input_needs_a_name_for_the_output(folder, made_panel, refused):
    assert "specify the output file for - with --out" in refused("impute", made_panel, "-")
