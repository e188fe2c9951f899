"""fewer check, and what fewer impute says of rows that are unlike those of the panel."""

import pandas as pd
import pytest

import fewer


@pytest.fixture
def faulty(folder, made_panel):
    panel = fewer.Panel.load(made_panel)
    table = pd.read_csv("test.csv")
    table[panel.features[0]] *= 1000
    table.to_csv("faulty.csv", index=False)
    return panel.features[0]


def test_clean_rows_and_a_table_of_them(folder, made_panel, asked, typed):
    found = asked("check", made_panel, "test.csv", "--out", "rows.csv")
    assert found["ok"]
    assert found["findings"] == []
    rows = pd.read_csv("rows.csv")
    assert rows["who"].tolist() == pd.read_csv("test.csv")["who"].tolist()
    assert rows["p"].between(0, 1).all()
    assert (rows["expected_error"] > 0).all()
    assert (
        "look like those that the panel was made from"
        in typed("check", made_panel, "test.csv").stdout
    )


def test_columns_that_the_panel_does_not_need_may_hold_anything(folder, made_panel, asked, typed):
    panel, table = fewer.Panel.load(made_panel), pd.read_csv("test.csv")
    table["remark"] = ["7" if at % 9 else "see notes" for at in range(len(table))]
    table.to_csv("remarks.csv", index=False)
    assert asked("score", made_panel, "remarks.csv") == asked("score", made_panel, "test.csv")
    assert float(panel.score("remarks.csv")) == float(panel.score("test.csv"))
    typed("report", made_panel, "--data", "remarks.csv")
    unmeasured = next(name for name in panel.names if name not in panel.features)
    table[unmeasured] = table["remark"]
    table.to_csv("remarks.csv", index=False)
    found = asked("check", made_panel, "remarks.csv", "--out", "rows.csv")
    assert found["ok"]
    kept = [name for name in table if name not in panel.names]
    assert list(pd.read_csv("rows.csv")) == [*kept, "distance", "p", "expected_error"]


def test_other_units_are_named_and_refused(faulty, made_panel, asked, typed, refused):
    (finding,) = asked("check", made_panel, "faulty.csv")["findings"]
    assert (finding["feature"], finding["kind"]) == (faulty, "unit")
    assert "multiplied by 1000" in typed("check", made_panel, "faulty.csv").stdout
    assert "--strict" in refused("check", made_panel, "faulty.csv", "--strict")
    done = typed("impute", made_panel, "faulty.csv", "--out", "all.csv")
    assert f"warning: 1 finding in 190 rows: {faulty}: values look multiplied" in done.stderr
    line = refused("impute", made_panel, "faulty.csv", "--out", "strict.csv", "--strict")
    assert "multiplied by 1000; fix the rows, or omit --strict" in line
    with pytest.raises(FileNotFoundError):
        pd.read_csv("strict.csv")


def test_drift_by_batch_and_as_a_figure(folder, made_panel, asked, typed):
    found = asked("check", made_panel, "test.csv", "--batches", 4)
    assert len(found["drift"]["rows"]) == 4
    found = asked("check", made_panel, "test.csv", "--batch-column", "clinic")
    assert set(found["drift"]["batches"]) == {"north", "south", "east", "west", "centre"}
    shown = typed("check", made_panel, "test.csv", "--plot", "drift.svg").stdout
    assert "over 9 batches" in shown
    assert (folder / "drift.svg").stat().st_size > 5000
