"""Genes of an AnnData: chosen, written down, imputed; counts in known units, sparse throughout."""

import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

import fewer
from fewer.data import moments, read_all
from fewer.data.counts import NormalizedCounts, counting_noise
from fewer.errors import FewerWarning, InputError, MissingExtraError, TypeInputError

anndata = pytest.importorskip("anndata", reason="anndata is not installed")
pd = pytest.importorskip("pandas", reason="pandas is not installed")
from fewer.anndata import (  # noqa: E402
    Platform,
    annotate,
    impute,
    open_cells,
    probe_limits,
    select_genes,
    write_gene_list,
)
from fewer.anndata.large import for_genes  # noqa: E402
from fewer.anndata.likelihood import _Model  # noqa: E402
from fewer.anndata.platform import Calibration  # noqa: E402
from fewer.anndata.studies import Studies  # noqa: E402
from fewer.report.summarise import summarise  # noqa: E402
from fewer.reproduce import python_of  # noqa: E402

pytestmark = [
    # what anndata does inside is not ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'mode.chained_assignment' option"),
]

QUICK = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
N, D = 400, 30


@pytest.fixture(autouse=True)
def _untested(monkeypatch):
    """As for large data, panels have no tests against chance, which take longer than the choice."""
    monkeypatch.setattr("fewer.selection.evidence.gather.QUICK_PASS", 0)


@pytest.fixture(autouse=True)
def _plain_text():
    """The pinned anndata cannot write the text of pandas 3; that of pandas 2 it can."""
    with warnings.catch_warnings(action="ignore"):
        kept = pd.get_option("future.infer_string")
        pd.set_option("future.infer_string", False)
    yield
    with warnings.catch_warnings(action="ignore"):
        pd.set_option("future.infer_string", kept)


def make_cells(n=N, seed=0, batches=2):
    """Counts of three kinds of cell that differ in their genes, and in how deep they were read."""
    shape = np.random.default_rng(7).gamma(0.5, size=(3, D)) + 0.05
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    mix = shape[kind] + 0.3 * rng.gamma(1.0, size=(n, 1)) * shape[(kind + 1) % 3]
    depth = rng.lognormal(4.0, 0.5, size=(n, 1))
    X = rng.poisson(depth * mix / mix.sum(1, keepdims=True)).astype(np.float32)
    X[X.sum(1) == 0, 0] = 1
    index = pd.Index([f"cell{i}" for i in range(n)], dtype=object)
    found = anndata.AnnData(X=sparse.csr_matrix(X), obs=pd.DataFrame(index=index))
    found.var_names = pd.Index([f"gene{j}" for j in range(D)], dtype=object)
    found.obs["kind"] = pd.Categorical(np.array(["B", "NK", "T"], dtype=object)[kind])
    found.obs["lane"] = np.array([f"lane{i % batches}" for i in range(n)], dtype=object)
    return found


@pytest.fixture
def cells():
    return make_cells()


def logged(counts, target_sum=1e4):
    counts = np.asarray(counts.toarray() if sparse.issparse(counts) else counts, dtype=float)
    return np.log1p(counts * (target_sum / counts.sum(1, keepdims=True)))


# -- units -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
def test_counts_become_logarithms_however_they_are_stored(cells, form, tmp_path):
    cells.X = form(cells.X.toarray())
    np.testing.assert_allclose(read_all(open_cells(cells)), logged(cells.X))
    cells.write_h5ad(tmp_path / "cells.h5ad")
    # so small a limit that rows are read in pieces
    for limit in (None, 20_000 if form is not sparse.csc_matrix else None):
        found = open_cells(tmp_path / "cells.h5ad", memory_limit=limit)
        np.testing.assert_allclose(read_all(found), logged(cells.X))
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    np.testing.assert_allclose(read_all(open_cells(backed)), logged(cells.X))
    backed.file.close()


def test_normalised_rows_stay_sparse(cells):
    source = open_cells(cells)
    assert isinstance(source, NormalizedCounts)
    part = source.sparse_rows(np.array([5, 2]))
    assert part.nnz == cells.X[[5, 2]].nnz
    np.testing.assert_allclose(part.toarray(), logged(cells.X)[[5, 2]])
    np.testing.assert_allclose(moments(source).variance, logged(cells.X).var(0))


def test_logarithms_are_taken_as_they_are(cells):
    cells.layers["log"] = sparse.csr_matrix(logged(cells.X).astype(np.float32))
    found = read_all(open_cells(cells, layer="log"))
    np.testing.assert_array_equal(found, cells.layers["log"].toarray())
    yes = anndata.AnnData(X=(cells.X.toarray() > 0).astype(np.float32))
    np.testing.assert_array_equal(read_all(open_cells(yes)), yes.X)  # yes or no is no count
    forced = read_all(open_cells(yes, counts="log1p", target_sum=10))
    np.testing.assert_allclose(forced, logged(yes.X, 10))
    same = read_all(open_cells(cells, counts="none"))
    np.testing.assert_array_equal(same, cells.X.toarray())


def test_cells_with_no_count_above_1_are_counts_to_a_panel_from_counts(cells, typed, tmp_path):
    faint = cells[:40].copy()
    faint.X.data = np.ones_like(faint.X.data)
    rows = read_all(open_cells(faint, like=typed))
    np.testing.assert_allclose(rows, logged(faint.X))
    part, totals = faint[:, typed.features], np.full(40, 50.0)
    found = read_all(open_cells(part, like=typed, totals=totals))
    np.testing.assert_allclose(found, np.log1p(part.X.toarray() * (1e4 / 50)))
    faint.write_h5ad(tmp_path / "faint.h5ad")
    assert (typed.predict(tmp_path / "faint.h5ad") == typed.predict(faint)).all()
    panel = select_genes(cells, 3, platform=Platform(), **QUICK)
    assert np.isfinite(panel.reconstruct(faint[:, panel.features])).all()
    faint.X = logged(faint.X)
    np.testing.assert_allclose(read_all(open_cells(faint, like=typed)), faint.X)
    with pytest.raises(InputError, match="not whole numbers"):
        open_cells(faint, like=panel)


def test_a_panel_from_counts_is_that_from_their_logarithms(cells):
    panel = select_genes(cells, 4, noise=None, **QUICK)
    plain = fewer.select(
        pd.DataFrame(logged(cells.X), columns=cells.var_names), 4, scale="none", **QUICK
    )
    assert panel.features == plain.features
    assert panel.held_out == pytest.approx(plain.held_out, rel=1e-6)
    said = panel.settings["cells"]
    assert said["units"] == "log(1 + counts per 10,000)"
    share = cells.X.toarray()[:, panel.indices].sum() / cells.X.sum()
    assert said["panel_share"] == pytest.approx(share, rel=1e-5)


def test_negative_counts_are_refused():
    bad = anndata.AnnData(X=np.array([[1.0, -2.0], [3.0, 4.0], [3.0, 4.0]]))
    with pytest.raises(InputError, match=r"counts cannot be negative, but there is -2; .*'none'"):
        select_genes(bad, 1, counts="log1p", **QUICK)


# -- annotations -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-2.0, 1.5])
@pytest.mark.parametrize("dense", [False, True])
def test_a_few_values_that_are_no_counts_are_no_secret(cells, value, dense):
    cells.X.data[3] = value
    if dense:
        cells.X = cells.X.toarray()
    with pytest.warns(FewerWarning, match=f"one is {value:g}, so none are normalised.*'log1p'"):
        assert not isinstance(open_cells(cells), NormalizedCounts)
    with warnings.catch_warnings(action="error"):
        open_cells(cells, counts="none")
        open_cells(cells, counts="log1p")
        cells.X = logged(make_cells().X)
        open_cells(cells)


def test_annotations_survive_a_file(cells, tmp_path):
    panel = select_genes(cells, 5, include=["gene3"], exclude=cells.var_names[:2], **QUICK)
    assert cells.var_names[cells.var["fewer_selected"]].tolist() == panel.features
    assert "gene3" in panel.features
    assert not {"gene0", "gene1"} & {*panel.features}
    ranked = cells.var["fewer_rank"].dropna()
    assert sorted(ranked) == [1, 2, 3, 4, 5]
    assert sorted(ranked.index) == sorted(panel.features)
    gains = cells.var["fewer_gain"][ranked.sort_values().index]
    assert (gains > 0).all()
    assert gains.sum() <= 1
    cells.write_h5ad(tmp_path / "cells.h5ad")
    found = anndata.read_h5ad(tmp_path / "cells.h5ad")
    pd.testing.assert_frame_equal(found.var, cells.var)
    kept = found.uns["fewer"]
    assert kept["features"].tolist() == panel.features
    assert kept["held_out"] == panel.held_out
    assert (kept["k"], kept["units"]) == (5, "log(1 + counts per 10,000)")


def test_nothing_is_written_unless_requested(cells, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    before = (tmp_path / "cells.h5ad").read_bytes()
    panel = select_genes(cells, 3, inplace=False, **QUICK)
    assert "fewer" not in cells.uns
    assert list(cells.var) == []
    assert select_genes(tmp_path / "cells.h5ad", 3, **QUICK).features == panel.features
    assert (tmp_path / "cells.h5ad").read_bytes() == before
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    assert select_genes(backed, 3, key_added="mine", **QUICK).features == panel.features
    assert backed.var["mine_selected"].sum() == 3
    backed.file.close()


def test_a_loaded_panel_can_be_written_down(cells, tmp_path):
    panel = select_genes(cells, 3, **QUICK)
    panel.save(tmp_path / "panel")
    other = make_cells(seed=1)
    annotate(other, fewer.Panel.load(tmp_path / "panel"))
    pd.testing.assert_frame_equal(other.var, cells.var)
    with pytest.raises(InputError, match="the AnnData lacks 1 of the 3 genes of the panel"):
        annotate(other[:, other.var_names != panel.features[0]].copy(), panel)


def test_the_report_names_the_units(cells, tmp_path):
    panel = select_genes(cells, 3, **QUICK)
    assert panel.evidence.source["kind"] == "AnnData, log(1 + counts per 10,000)"
    cells.write_h5ad(tmp_path / "cells.h5ad")
    again = select_genes(tmp_path / "cells.h5ad", 3, **QUICK)
    assert again.evidence.source["kind"] == "cells.h5ad, log(1 + counts per 10,000)"


def test_counts_by_a_poisson_likelihood(cells):
    model = fewer.ConcreteAutoencoder(
        k=4, loss="poisson", epochs=40, stop_probability=0.5, refit_epochs=40, random_state=0
    ).fit(cells)
    rates = model.inverse_transform(cells.X[:, model.columns_])
    assert (rates >= 0).all()
    assert model.get_feature_names_out().tolist() == cells.var_names[model.columns_].tolist()
    assert model.score(cells) > 0.2


def test_without_anndata_one_line_says_what_to_install(cells, tmp_path, monkeypatch):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(MissingExtraError, match=r"anndata.*pip install 'fewer\[anndata\]'"):
        select_genes(tmp_path / "cells.h5ad", 3)


# -- counting noise --------------------------------------------------------------------------


def test_counting_noise_is_what_poisson_counts_have():
    rng = np.random.default_rng(0)
    rate = np.exp(rng.normal(np.linspace(0, 4, 40), 0.5, size=(3000, 40)))
    counts = rng.poisson(rate)
    again = rng.poisson(rate)
    a, b = (np.log1p(x * 1e4 / x.sum(1, keepdims=True)) for x in (counts, again))
    exact = np.var(a - b, axis=0) / 2
    found = counting_noise(NormalizedCounts(fewer.data.open(counts.astype(float))))
    np.testing.assert_allclose(found, exact, rtol=0.45)
    assert found.sum() == pytest.approx(exact.sum(), rel=0.05)
    rows = sparse.csr_matrix(counts.astype(float))
    np.testing.assert_allclose(counting_noise(NormalizedCounts(fewer.data.open(rows))), found)
    assert counting_noise(NormalizedCounts(fewer.data.open(counts + 0.5))) is None
    counts = counts.astype(float)
    counts[::50, 3] = np.nan
    assert counting_noise(NormalizedCounts(fewer.data.open(counts)))[3] == pytest.approx(
        found[3], rel=0.2
    )


def test_counts_are_judged_by_the_expression_behind_them(cells):
    panel = select_genes(cells, 4, **QUICK)
    plain = select_genes(cells, 4, noise=None, **QUICK)
    assert "against the signal behind the noise" in panel.settings["protocol"]
    assert panel.held_out > plain.held_out + 0.2  # of which half is noise that nobody can know
    shape = np.random.default_rng(7).gamma(0.5, size=(3, D)) + 0.05
    fresh = make_cells(seed=1)
    expected = np.log1p(1e4 * shape / shape.sum(1, keepdims=True))[fresh.obs["kind"].cat.codes]
    on = fresh.var_names.isin(panel.features)
    found = impute(fresh, panel).layers["fewer"]
    raw = impute(fresh, panel, denoise=False).layers["fewer"]
    np.testing.assert_allclose(raw[:, on], logged(fresh.X)[:, on], rtol=1e-5)
    assert np.square(found - expected)[:, on].mean() < np.square(raw - expected)[:, on].mean()
    with pytest.raises(InputError, match="noise='much'"):
        select_genes(cells, 4, noise="much", **QUICK)


def test_where_counts_are_judged_as_measured(cells):
    plain, same = select_genes(cells, 4, **QUICK), select_genes(cells, np.int64(4), **QUICK)
    assert same.held_out == plain.held_out
    assert same.settings["protocol"] == plain.settings["protocol"]
    cells.X = cells.X.toarray()
    cells.X[7, 3] = np.nan
    with pytest.warns(FewerWarning, match="some counts are missing"):
        measured = select_genes(cells, 4, **QUICK)
    assert "against the signal" not in measured.settings["protocol"]
    assert "noise" not in measured.settings["cells"]


@pytest.mark.parametrize("depth", [0.5, 8])
def test_new_cells_are_scored_by_their_own_counting_noise(depth, tmp_path):
    def draw(seed, depth):
        rng = np.random.default_rng(seed)
        rate = np.exp(rng.normal(size=(600, 2)) @ loadings + level)
        rate *= 60 / rate.sum(1, keepdims=True)
        names = pd.Index([f"gene{j}" for j in range(D)], dtype=object)
        var = pd.DataFrame(index=names)
        twice = rng.poisson(depth * rate, size=(2, *rate.shape)).astype(np.float32)
        twice[:, :, 0] += 1  # no empty cells
        return [anndata.AnnData(X=sparse.csr_matrix(x), var=var) for x in twice]

    rng = np.random.default_rng(3)
    loadings, level = 0.7 * rng.normal(size=(2, D)), rng.normal(size=D)
    panel = select_genes(draw(0, 1.0)[0], 5, inplace=False, **QUICK)
    new, again = draw(1, depth)
    truth = logged(new.X), logged(again.X)
    gap = [truth[i] - panel.reconstruct(new if i else again) for i in (0, 1)]
    noise = np.square(truth[0] - truth[1]).sum() / 2
    wrong = sum(np.square(each).sum() for each in gap) / 2 - noise
    total = sum(np.square(x - x.mean(0)).sum() for x in truth) / 2 - noise
    score = panel.score(new)
    assert score == pytest.approx(1 - wrong / total, abs=0.06)
    assert (score.errors >= 0).all()
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    assert again.score(new) == score
    new.X = sparse.csr_matrix(truth[0])
    with pytest.warns(FewerWarning, match="not counts, so how much of their variance"):
        assert panel.score(new) <= 1
    new.X = sparse.csr_matrix(rng.poisson(0.02, size=new.shape).astype(np.float32))
    with pytest.warns(FewerWarning, match="of the variance of these rows is noise"):
        assert panel.score(new) > -1e5


def test_a_column_of_numbers_is_no_group_without_a_word(cells):
    cells.obs["depth"] = np.asarray(cells.X.sum(1)).ravel()
    with pytest.warns(FewerWarning, match="groupby='depth' is a column of numbers"):
        select_genes(cells, 3, groupby="depth", **QUICK)


# -- groups and batches ----------------------------------------------------------------------


def test_cell_types_are_distinguished(cells):
    cells = cells[:200].copy()
    panel = select_genes(cells, 3, groupby="kind", reconstruct=0.0, **QUICK)
    assert cells.uns["fewer"]["groupby"] == "kind"
    assert cells.uns["fewer"]["held_out_groups"] == panel.target.held_out
    fresh = make_cells(seed=1)
    told = panel.predict(open_cells(fresh, like=panel))
    assert (told == fresh.obs["kind"].to_numpy()).mean() > 0.9
    both = select_genes(cells, 3, groupby="kind", inplace=False, **QUICK)  # and reconstruction
    assert both.settings["reconstruct"] == 0.8
    assert both.held_out > panel.held_out


def test_a_panel_for_types_has_markers_of_rare_ones():
    """Six types of five markers; of the indicator of 2% of the cells, little can be explained."""
    draw = np.random.default_rng(0)
    kind = draw.choice(6, size=700, p=[0.3, 0.25, 0.2, 0.13, 0.1, 0.02])
    own = kind[:, None] == np.arange(30) // 5
    rate = np.repeat(draw.uniform(0.3, 1.5, size=6), 5) * np.where(own, 8.0, 1.0)
    rate = np.hstack([rate * draw.gamma(3, 1 / 3, size=(700, 1)), np.full((700, 10), 2.0)])
    cells = anndata.AnnData(draw.poisson(rate).astype(np.float32))
    cells.obs["kind"] = pd.Categorical(kind.astype(str).astype(object))
    panel = select_genes(cells, 8, groupby="kind", reconstruct=0.0, inplace=False, **QUICK)
    found = {entry["strategy"]: entry["features"] for entry in panel.leaderboard}
    assert {int(gene) // 5 for gene in found["search"]} >= {*range(6)}


def test_one_panel_explains_expression_and_tells_rare_types():
    """Loud programs within types, and five faint markers of each type: 2% of the cells are one."""
    draw = np.random.default_rng(0)
    kind = draw.choice(6, size=900, p=[0.3, 0.25, 0.2, 0.13, 0.1, 0.02])
    own = kind[:, None] == np.arange(30) // 5
    programs = draw.gamma(1.0, size=(900, 4)) @ (draw.gamma(0.5, size=(4, 60)) + 0.2)
    rate = np.hstack([np.where(own, 4.0, 0.4), 6 * programs])
    cells = anndata.AnnData(draw.poisson(rate).astype(np.float32))
    cells.obs["kind"] = pd.Categorical(kind.astype(str).astype(object))
    options = {"inplace": False, "counts": "none", "noise": rate.mean(0), **QUICK}
    both = select_genes(cells, 14, groupby="kind", **options)
    marked = {int(gene) // 5 for gene in both.indices if gene < 30}
    assert marked == {*range(6)}  # every type has a marker
    assert (both.indices >= 30).sum() >= 4  # and the programs are there
    typed = select_genes(cells, 14, groupby="kind", reconstruct=0.01, **options)
    assert (typed.indices < 30).sum() > (both.indices < 30).sum()
    assert both.held_out > typed.held_out
    free = select_genes(cells, 14, **options)
    assert free.held_out > both.held_out
    assert both.target.held_out > 0.9
    ruled = select_genes(
        cells, 14, groupby="kind", include=["89"], exclude=both.features[:3], **options
    )
    assert "89" in ruled.features
    assert not {*ruled.features} & {*both.features[:3]} - {"89"}


def with_batch_effect(cells, genes):
    """Genes that hardly vary within a batch and differ a lot between them."""
    rows = logged(cells.X)
    second = (cells.obs["lane"] == "lane1").to_numpy()
    rows[:, genes] = 0.05 * np.random.default_rng(0).normal(size=(N, len(genes)))
    rows[np.ix_(second, genes)] += 9
    cells.X = rows
    return cells


def test_evidence_is_computed_only_where_it_is_asked_for(cells, monkeypatch):
    monkeypatch.setattr("fewer.selection.api.gather_evidence", lambda *a, **b: pytest.fail("early"))
    select_genes(cells, 3, inplace=False, **QUICK)


def test_no_gene_is_chosen_for_its_batches(cells):
    cells = with_batch_effect(cells, [4, 5])
    assert {"gene4", "gene5"} & {*select_genes(cells, 3, **QUICK).features}
    without = select_genes(cells, 3, batch_key="lane", **QUICK)
    assert not {"gene4", "gene5"} & {*without.features}
    assert without.settings["cells"]["batch_key"] == "lane"


def test_whole_batches_are_held_out(cells, monkeypatch):
    import fewer.anndata.selection as module

    seen = {}

    def spy(rows, k, **options):
        seen.update(rows=read_all(rows), **options)
        return fewer.select(rows, k, **options)

    monkeypatch.setattr(module, "select_in_stages", spy)
    select_genes(cells, 3, batch_key="lane", **QUICK)
    lanes = cells.obs["lane"].to_numpy()
    np.testing.assert_array_equal(seen["row_groups"], lanes)
    for lane in ("lane0", "lane1"):
        np.testing.assert_allclose(seen["rows"][lanes == lane].mean(0), seen["rows"].mean(0))
    np.testing.assert_allclose(seen["rows"].mean(0), logged(cells.X).mean(0))


# -- imputation ------------------------------------------------------------------------------


def test_a_layer_with_all_genes(cells, tmp_path):
    panel = select_genes(cells, 4, noise=None, **QUICK)
    fresh = make_cells(seed=1)[:, ::-1].copy()  # another order of genes
    assert impute(fresh, panel) is fresh
    truth = logged(fresh.X)
    found = fresh.layers["fewer"]
    assert found.dtype == np.float32
    at = [list(fresh.var_names).index(name) for name in panel.names]
    rebuilt = panel.reconstruct(truth[:, at][:, panel.indices])
    np.testing.assert_allclose(found[:, at], rebuilt, atol=1e-5)
    on_panel = fresh.var_names.isin(panel.features)
    np.testing.assert_allclose(found[:, on_panel], truth[:, on_panel], rtol=1e-6)
    score = 1 - ((found - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum()
    assert score == pytest.approx(panel.score(open_cells(fresh, like=panel)), abs=1e-4)
    fresh.write_h5ad(tmp_path / "fresh.h5ad")


def test_the_same_into_a_file(cells, tmp_path, full_disk):
    panel = select_genes(cells, 4, **QUICK)
    fresh = make_cells(seed=1)
    fresh.obsm["X_pca"] = np.ones((N, 2), dtype=np.float32)
    fresh.write_h5ad(tmp_path / "fresh.h5ad")
    backed = anndata.read_h5ad(tmp_path / "fresh.h5ad", backed="r")
    wanted = impute(fresh.copy(), panel).layers["fewer"]
    out = tmp_path / "out.h5ad"
    for data in (tmp_path / "fresh.h5ad", backed, fresh):
        # blocks of a few rows
        assert impute(data, panel, out=out, memory_limit=50_000) == out
        found = anndata.read_h5ad(out)
        np.testing.assert_array_equal(found.layers["fewer"], wanted)
        np.testing.assert_array_equal(found.X.toarray(), fresh.X.toarray())
        np.testing.assert_array_equal(found.obsm["X_pca"], fresh.obsm["X_pca"])
        assert found.obs["kind"].tolist() == fresh.obs["kind"].tolist()
    with pytest.raises(InputError, match="this is a part of cells on disk"):
        impute(backed[5:20], panel, out=out)
    for data in (backed, fresh):
        with full_disk(), pytest.raises(InputError, match=r"out\.h5ad cannot be written"):
            impute(data, panel, out=out)
    backed.file.close()
    np.testing.assert_array_equal(anndata.read_h5ad(out).layers["fewer"], wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh.h5ad", "out.h5ad"]


def test_cells_of_which_only_the_panel_was_measured(cells, tmp_path):
    panel = select_genes(cells, 4, **QUICK)
    fresh = make_cells(seed=1)
    fresh.obs["total"] = np.asarray(fresh.X.sum(1)).ravel()
    measured = fresh[:, panel.features[::-1]].copy()
    measured.obsm["spatial"] = np.random.default_rng(0).normal(size=(N, 2))
    measured.uns["tissue"] = "brain"
    found = impute(measured, panel, totals="total")
    assert found.var_names.tolist() == panel.names
    assert found.obs["kind"].tolist() == fresh.obs["kind"].tolist()
    np.testing.assert_allclose(found.X, impute(fresh, panel).layers["fewer"], rtol=1e-5, atol=1e-5)
    measured.write_h5ad(tmp_path / "measured.h5ad")
    impute(tmp_path / "measured.h5ad", panel, totals="total", out=tmp_path / "all.h5ad")
    stored = anndata.read_h5ad(tmp_path / "all.h5ad")
    np.testing.assert_allclose(stored.X, found.X, rtol=1e-5, atol=1e-5)
    assert stored.obs_names.tolist() == fresh.obs_names.tolist()
    assert stored.obs["kind"].tolist() == fresh.obs["kind"].tolist()
    for one in (found, stored):
        np.testing.assert_array_equal(one.obsm["spatial"], measured.obsm["spatial"])
        assert one.uns["tissue"] == "brain"
        assert one.uns["fewer"]["k"] == 4
        assert one.var_names[one.var["fewer_selected"]].tolist() == panel.features
    share = panel.settings["cells"]["panel_share"]
    with pytest.warns(FewerWarning, match=f"they had {share:.1%} of all counts"):
        guessed = impute(measured, panel, denoise=False)
    sums = np.asarray(measured.X.sum(1)).ravel()
    known = sums > 0
    exact = np.log1p(measured.X.toarray()[known] * 1e4 * share / sums[known, None])
    np.testing.assert_allclose(guessed[known, measured.var_names].X, exact, rtol=1e-4)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_a_failed_probe_does_not_bias_totals(cells, form, tmp_path):
    panel = select_genes(cells, 6, **QUICK)
    share = cells.X.toarray().sum(0) / cells.X.sum()
    most = panel.indices[np.argmax(share[panel.indices])]
    part = cells[:, panel.features].copy()
    x = part.X.toarray()
    failed = np.arange(N) % 2 == 0
    x[np.ix_(failed, panel.indices == most)] = np.nan
    part.X = form(x)
    panel.save(tmp_path / "panel")
    for each in (panel, fewer.Panel.load(tmp_path / "panel")):
        with pytest.warns(FewerWarning, match="only the 6 genes on the panel were measured"):
            found = read_all(open_cells(part, like=each))
        kept = ~np.isnan(x) @ share[panel.indices]
        totals = np.nansum(x, 1) / kept
        exact = np.log1p(x * (1e4 / np.where(totals > 0, totals, np.inf))[:, None])
        np.testing.assert_allclose(found, exact, rtol=1e-5)
    panel.reconstructor = replace(panel.reconstructor, shares=None)  # as in earlier versions
    with pytest.warns(FewerWarning, match="only the 6 genes on the panel were measured"):
        older = read_all(open_cells(part, like=panel))
    np.testing.assert_allclose(older[~failed], exact[~failed], rtol=1e-5)
    panel = each
    padded = np.full((N, D), np.nan)
    padded[:, panel.indices] = x
    whole = read_all(open_cells(anndata.AnnData(form(padded), var=cells.var), like=panel))
    np.testing.assert_allclose(whole[:, panel.indices], exact, rtol=1e-5)


def test_a_gene_that_is_missing_is_named(cells):
    panel = select_genes(cells, 4, **QUICK)
    lacking = cells.var_names[np.setdiff1d(np.arange(D), panel.indices)[0]]
    part = cells[:, cells.var_names != lacking].copy()
    with pytest.warns(FewerWarning, match=f"lack 1 of the {D} genes .*'{lacking}'"):
        opened = open_cells(part, like=panel)
    assert opened.names == [name for name in panel.names if name != lacking]
    assert opened.shape == (N, D - 1)
    with pytest.warns(FewerWarning, match="estimated from the others"):
        found = impute(part, panel).X
    whole = impute(cells.copy(), panel).layers["fewer"]
    assert np.abs(found - whole).max() < 0.3
    with pytest.warns(FewerWarning), pytest.raises(InputError, match=f"lacks 1 .*'{lacking}'"):
        panel.score(part)
    with pytest.warns(FewerWarning, match="estimated from the others"):
        smaller = panel.without(panel.features[0]).reconstruct(part)
    assert smaller.shape == (N, D)
    with pytest.raises(
        InputError, match=f"lack 1 of the 4 genes on the panel: '{panel.features[0]}'"
    ):
        impute(cells[:, cells.var_names != panel.features[0]].copy(), panel)


def test_genes_that_were_not_measured_in_some_cells(cells):
    cells.X = logged(cells.X)
    panel = select_genes(cells, 4, **QUICK)
    gap = cells.copy()
    gap.X[3, panel.indices[0]] = np.nan
    found = impute(gap, panel).layers["fewer"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[4], impute(cells, panel).layers["fewer"][4])


def test_the_layer_that_a_panel_was_made_from_is_read_again(cells):
    cells.layers["counts"] = cells.X.copy()
    cells.X = np.full((N, D), 0.5, dtype=np.float32)
    panel = select_genes(cells, 4, layer="counts", **QUICK)
    fresh = cells.copy()
    impute(fresh, panel, denoise=False)
    wanted = logged(cells.layers["counts"])[:, panel.indices]
    np.testing.assert_allclose(fresh.layers["fewer"][:, panel.indices], wanted, rtol=1e-5)
    with pytest.raises(InputError, match="layer='counts' holds the measured values"):
        impute(fresh, panel, layer="counts")
    fresh.layers["raw"] = fresh.layers["counts"].copy()
    with pytest.raises(InputError, match="there is a layer='raw'; give the result another name"):
        impute(fresh, panel, layer="raw")
    impute(fresh, panel)  # may be repeated


@pytest.fixture(scope="module")
def typed():
    return select_genes(make_cells(), 5, groupby="kind", inplace=False, **QUICK)


@pytest.mark.parametrize("as_file", [False, True])
def test_methods_of_a_panel_read_cells_in_its_units(typed, as_file, tmp_path):
    given = new = make_cells(60, seed=3)
    if as_file:
        given = tmp_path / "new.h5ad"
        new.write_h5ad(given)
    values = logged(new.X)
    table = pd.DataFrame(values, columns=new.var_names)
    kinds = new.obs["kind"].astype(str).to_numpy()
    assert (typed.predict(given) == typed.predict(table)).all()
    same = np.testing.assert_allclose
    same(typed.predict_proba(given), typed.predict_proba(table), atol=1e-5)
    assert (typed.predict_set(given) == typed.predict_set(table)).all()
    assert typed.score_target(given, kinds) == typed.score_target(table, kinds)
    same(typed.reconstruct(given), typed.reconstruct(table), atol=1e-4)
    same(typed.impute(given), values, atol=1e-4)
    same(typed.transform(given), values[:, typed.indices], atol=1e-4)
    opened = open_cells(given, like=typed)
    assert float(typed.score(given)) == pytest.approx(float(typed.score(opened)))
    assert typed.check(given).findings == typed.check(table).findings
    assert typed.examine(given).score == pytest.approx(typed.examine(opened).score)


def test_methods_of_a_panel_read_cells_as_open_cells_does(typed):
    part = make_cells(60, seed=3)[:, typed.features].copy()
    with pytest.warns(FewerWarning, match="the total of each cell is estimated"):
        found = typed.reconstruct(part)
    with pytest.warns(FewerWarning, match="the total of each cell is estimated"):
        opened = open_cells(part, like=typed)
    np.testing.assert_allclose(found, typed.reconstruct(opened), atol=1e-5)
    plain = fewer.select(logged(make_cells().X), 3, **QUICK)
    raw = make_cells(5, seed=3)  # a panel that knows no units takes values as they are
    np.testing.assert_array_equal(plain.impute(raw), raw.X.toarray())


def test_raw_counts_opened_by_hand_are_refused(typed, tmp_path):
    make_cells(60, seed=3).write_h5ad(tmp_path / "new.h5ad")
    raw = fewer.data.open(tmp_path / "new.h5ad")
    for method in (typed.score, typed.predict, typed.reconstruct, typed.check):
        with pytest.raises(InputError, match="open_cells\\(path, like=panel\\)"):
            method(raw)
    opened = open_cells(tmp_path / "new.h5ad", like=typed)
    assert float(typed.score(opened)) == float(typed.score(tmp_path / "new.h5ad"))


def test_a_changed_panel_keeps_its_units(typed):
    new = make_cells(60, seed=3)
    changed = typed.swap(typed.features[0], next(g for g in typed.names if g not in typed.features))
    np.testing.assert_allclose(changed.impute(new), logged(new.X), atol=1e-4)
    with pytest.warns(FewerWarning, match="only the 5 genes on the panel were measured"):
        changed.predict(new[:, changed.features].copy())
    part = new[:, changed.features].copy()
    assert impute(part, changed, totals=np.asarray(new.X.sum(1)).ravel()).shape == new.shape


# -- mistakes --------------------------------------------------------------------------------


def test_no_cells_and_totals_below_the_counts_are_refused(typed):
    with pytest.raises(InputError, match="have no cells"):
        select_genes(make_cells()[:0], 5)
    with pytest.raises(InputError, match="have no cells"):
        typed.predict(make_cells()[:0])
    part = make_cells(30, seed=3)[:, typed.features].copy()
    for sparse_or_not in (part.X, part.X.toarray()):
        part.X = sparse_or_not
        with pytest.raises(InputError, match="totals are all counts of each cell, but one is 1 "):
            impute(part, typed, totals=np.ones(30))


def test_plots_without_scanpy_say_what_to_install(cells, monkeypatch):
    monkeypatch.setitem(sys.modules, "scanpy", None)
    with pytest.raises(MissingExtraError, match="needs scanpy, which is not installed: pip inst"):
        fewer.pl.panel_umap(cells, "kind")


def test_counts_are_refused_by_a_panel_of_logarithms(cells):
    counts = cells.copy()
    cells.X = logged(cells.X)
    panel = select_genes(cells, 3, **QUICK)
    with pytest.raises(InputError, match="these values are counts, but the panel was made from"):
        impute(counts, panel)
    counts.layers["log"] = cells.X
    impute(counts, panel, measured_layer="log")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groupby": "type"}, "groupby='type' is not in obs, which has 'kind', 'lane', 'one'"),
        ({"batch_key": "plate"}, "batch_key='plate' is not in obs"),
        ({"batch_key": "one"}, "batch_key='one' has one batch only, 'x'; leave it out"),
        ({"groupby": "some"}, "groupby='some': 1 cells have no group"),
        ({"batch_key": "some"}, "batch_key='some': some cells have no batch"),
        ({"counts": "raw"}, "counts='raw' is not valid; use 'auto' or 'log1p' or 'none'"),
        ({"target_sum": 0}, "target_sum=0 must be a number above 0"),
        ({"target": "kind"}, "target= is called groupby= here"),
        ({"group_by": "kind"}, "select_genes has no option group_by=; did you mean groupby="),
        ({"qwerty": 1}, "select_genes has no option qwerty=$"),
        ({"row_groups": "lane"}, "row_groups= is called batch_key= here"),
        ({"layer": "spliced"}, "no layer 'spliced'"),
        ({"include": ["gene99"]}, "gene99"),
    ],
)
def test_bad_options(cells, options, message):
    cells.obs["one"] = "x"
    some = cells.obs["kind"].copy()
    some.iloc[7] = np.nan
    cells.obs["some"] = some
    with pytest.raises(InputError, match=message):
        select_genes(cells, 3, **QUICK | options)


def test_bad_data(cells, tmp_path):
    with pytest.raises(TypeInputError, match="data are a ndarray; give an AnnData or the path"):
        select_genes(np.eye(3), 1)
    with pytest.raises(InputError, match=r"cells\.csv' is not there"):
        select_genes(tmp_path / "cells.csv", 1)
    (tmp_path / "cells.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"cells\.csv' is not an \.h5ad file"):
        select_genes(tmp_path / "cells.csv", 1)
    panel = select_genes(cells, 3, **QUICK)
    cells.write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(InputError, match=r"these cells are on disk.* out='imputed\.h5ad'"):
        impute(tmp_path / "cells.h5ad", panel)
    with pytest.raises(InputError, match=r"ends in \'\.csv\'; use \.h5ad"):
        impute(cells, panel, out=tmp_path / "all.csv")
    with pytest.raises(InputError, match="is not a folder; choose another path"):
        impute(cells, panel, out=tmp_path / "cells.csv" / "all.h5ad")
    with pytest.raises(InputError, match="the data lack 1 of the 3 genes on the panel"):
        impute(cells[:, cells.var_names != panel.features[1]].copy(), panel)
    more = anndata.AnnData(X=sparse.hstack([cells.X, cells.X[:, :1]], format="csr"))
    more.var_names = pd.Index([*cells.var_names, "stranger"], dtype=object)
    with pytest.raises(InputError, match=r"the panel does not know 1 of the \d+ genes"):
        impute(more, panel)
    for totals in (np.ones(3), np.zeros(N), "kind"):
        with pytest.raises(InputError, match=f"totals must be {N} numbers above 0"):
            impute(cells, panel, totals=totals)


# -- real cells ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_chosen_genes_reconstruct_real_cells_better_than_variable_ones():
    scanpy = pytest.importorskip("scanpy", reason="scanpy, which brings the cells, is missing")
    from sklearn.linear_model import RidgeCV

    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    order = np.random.default_rng(0).permutation(cells.n_obs)
    train, test = cells[order[:490]].copy(), cells[order[490:]].copy()
    truth = test.X.toarray()

    def share(genes):
        x, new = (part[:, list(genes)].X.toarray() for part in (train, test))
        rebuilt = RidgeCV(alphas=np.logspace(0, 4, 9)).fit(x, train.X.toarray()).predict(new)
        return 1 - ((rebuilt - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum()

    panel = select_genes(train, 10, inplace=False, **QUICK)
    assert panel.settings["cells"]["counts"] == "none"  # they are logarithms
    reached = share(panel.features)
    for flavor in ("seurat", "cell_ranger"):
        found = scanpy.pp.highly_variable_genes(train, n_top_genes=10, flavor=flavor, inplace=False)
        variable = train.var_names[found["highly_variable"].to_numpy()]
        assert len(variable) == 10
        assert reached > share(variable) + 0.05


# -- what can be probed ----------------------------------------------------------------------------


def test_limits_of_an_assay_hold_exactly(cells, tmp_path):
    dense = cells.X.toarray()
    cells.var["family"] = [f"f{j // 3}" if j < 15 else None for j in range(D)]
    rare = (dense > 0).mean(0) < 0.3
    file = tmp_path / "probes.csv"
    file.write_text("gene,probes\n" + "".join(f"gene{j},{4 if j else 2}\n" for j in range(D - 1)))
    options = {
        "markers": {"T": ["gene3", "gene4", "gene20", "gene99"], "B": ["gene21"]},
        "at_least": {"T": 2},
        "similar": "family",
        "detection": 0.3,
        "crowding": 11.0,
        "groupby": "kind",
        "probes": str(file),
        "least_probes": 3,
        "exclude": ["gene7"],
    }
    with pytest.warns(FewerWarning, match="the data lack 'gene99', markers of T"):
        limits = probe_limits(cells, **options)
    shut = {*limits["exclude"]}
    assert {f"gene{j}" for j in np.flatnonzero(rare)} | {"gene0", "gene29", "gene7"} == shut
    panel = select_genes(cells, 6, **QUICK, **limits)
    chosen = {*panel.features}
    assert not chosen & shut
    assert len(chosen & {"gene3", "gene4", "gene20"}) == 2  # gene3 and gene4 are of one family
    family = cells.var["family"].iloc[panel.indices].dropna()
    assert family.is_unique
    sums = dense[:, panel.indices].sum(1)
    for kind in ("B", "NK", "T"):
        assert sums[cells.obs["kind"] == kind].mean() <= 11.0 + 1e-6
    free = select_genes(cells, 6, **QUICK, inplace=False)
    sums = dense[:, free.indices].sum(1)  # without the limit there are more
    assert max(sums[cells.obs["kind"] == kind].mean() for kind in ("B", "NK", "T")) > 11
    assert "T" in [limit["name"] for limit in panel.settings["limits"]]


def test_expression_limits_are_of_the_file_too(cells, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    dense = cells.X.toarray()
    limits = probe_limits(tmp_path / "cells.h5ad", most_mean=2.0, most_counts=20, least_mean=0.1)
    mean = dense.mean(0)
    bad = (mean > 2) | (mean < 0.1) | (dense.max(0) > 20)
    assert limits == {"exclude": [f"gene{j}" for j in np.flatnonzero(bad)]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at_least": {"T": 1}}, "needs markers="),
        ({"markers": {"B": ["gene1"]}, "at_least": {"T": 1}}, "at_least has 'T', but markers are"),
        ({"markers": {"B": ["gene1"]}}, "markers need at_least="),
        ({"markers": {"B": "gene1"}, "at_least": 1}, "markers of 'B' are text, 'gene1'"),
        ({"similar": ["gene1", "gene2"]}, "similar has 'gene1', which is no list; give a list of"),
        ({"exclude": "gene1"}, "exclude='gene1' is text; give a list of genes"),
        ({"exclude": ["gene1", "nonsense"]}, "exclude has genes that the data lack: 'nonsense'"),
        ({"similar": "kinship"}, "similar='kinship' is neither a file nor in var"),
        ({"detection": 1.1}, "leave no gene"),
        ({"costs": {"gene1": 2.0}}, "costs need budget="),
        ({"probes": {"gene1": "many"}}, "values that are not numbers"),
        ({"probes": "wide.csv"}, "probes='wide.csv' has 3 columns; give gene and value"),
    ],
)
def test_limits_that_make_no_sense_are_refused(cells, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.csv").write_text("gene,probes,note\ngene1,3,x\n")
    with pytest.raises(InputError, match=words):
        probe_limits(cells, **options)


def test_what_genes_cost_is_a_budget_of_its_own(cells):
    limits = probe_limits(cells, costs={f"gene{j}": j / 2 for j in range(5)}, budget=4, similar=[])
    assert limits["exclude"] == [f"gene{j}" for j in range(5, D)]  # nobody says what these cost
    assert limits["costs"]["costs"].tolist() == [*np.arange(5) / 2, *[0.0] * (D - 5)]
    assert limits["budget"] == {"costs": 4}


def test_expression_limits_need_counts(cells):
    cells.layers["counts"] = cells.X.copy()
    for values in (cells.X.toarray() - 1, logged(cells.X)):
        cells.X = values
        with pytest.raises(InputError, match="need raw counts; name their layer with layer="):
            probe_limits(cells, detection=0.1)
    assert probe_limits(cells, detection=0.1, layer="counts")


# -- several studies -------------------------------------------------------------------------------


@pytest.fixture
def studies(tmp_path):
    """Other cells, in another order of genes, without some of them, dense, and on disk."""
    second = make_cells(200, seed=1)[:, ::-1].copy()
    second.X = second.X.toarray()
    third = make_cells(100, seed=2)[:, 5:].copy()
    third.write_h5ad(tmp_path / "third.h5ad")
    return {"one": make_cells(), "two": second, "three": tmp_path / "third.h5ad"}


def test_studies_are_stacked_by_the_names_of_their_genes(studies):
    one, two = (studies[name] for name in ("one", "two"))
    stacked = Studies(studies, "all").open()
    assert stacked.shape == (700, D)
    rows = stacked.rows(np.array([650, 3, 450, 449]))
    whole = open_cells(one).rows(slice(3, 4))
    np.testing.assert_allclose(rows[1], whole[0], rtol=1e-6)
    reverse = open_cells(two).rows(np.array([50, 49])).flip(1)
    np.testing.assert_allclose(rows[2:], reverse, rtol=1e-6)
    assert rows[0].isnan().tolist() == [True] * 5 + [False] * (D - 5)
    assert stacked.rows(np.array([], dtype=int)).shape == (0, D)
    assert stacked.sparse_rows(slice(3)) is None
    shared = Studies({"one": one, "again": make_cells(50, seed=3)[:, 3:].copy()}).open()
    assert shared.is_sparse
    assert shared.names == [f"gene{j}" for j in range(3, D)]
    dense = shared.sparse_rows(np.array([440, 2, 410])).toarray()
    np.testing.assert_allclose(dense, shared.rows(np.array([440, 2, 410])), rtol=1e-6)


def test_each_study_is_held_out_once(studies):
    panel = select_genes(studies, 4, strategies=["search"], random_state=0)
    assert panel.d == D - 5
    assert "3 folds" in panel.settings["protocol"]
    assert panel.settings["cells"]["studies"] == {"one": 400, "two": 200, "three": 100}
    assert studies["two"].var["fewer_selected"].sum() == 4
    assert (
        impute(studies["one"][:, panel.features].copy(), panel, totals=np.full(400, 1e4)).shape[1]
        == 25
    )
    donors = select_genes(studies, 4, strategies=["search"], random_state=0, batch_key="lane")
    assert "6 folds" in donors.settings["protocol"]


def test_a_gene_of_a_single_study_is_unexplained_and_no_worse():
    parts = [make_cells(200, seed=seed) for seed in range(3)]
    most = np.argsort(-parts[0].X.toarray().mean(0))[:3]  # each is measured in one study only
    for at, part in enumerate(parts):
        parts[at] = part[:, np.setdiff1d(np.arange(D), np.delete(most, at))].copy()
    panel = select_genes(parts, 4, genes="all", strategies=["search"], random_state=0)
    assert set(panel.names) > {f"gene{j}" for j in most}
    assert panel.held_out > 0
    own = zip(parts, (f"gene{j}" for j in most), strict=True)
    known = [read_all(open_cells(part))[:, part.var_names.get_loc(g)].var() for part, g in own]
    at = [panel.names.index(f"gene{j}") for j in most]
    np.testing.assert_allclose(panel.held_out.errors[at], known, rtol=0.1)


def test_weights_of_studies_are_those_of_their_cells():
    one, two = make_cells(300, seed=4), make_cells(100, seed=5)
    fixed = {"strategies": ["search"], "random_state": 0, "inplace": False, "noise": None}
    ours = select_genes([one, two], 3, study_weights="equal", **fixed)
    thrice = select_genes([one, anndata.concat([two] * 3, index_unique="-")], 3, **fixed)
    assert ours.features == thrice.features
    assert float(ours.held_out) == pytest.approx(float(thrice.held_out), rel=1e-6)
    named = select_genes({"a": one, "b": two}, 3, study_weights={"a": 1, "b": 3}, **fixed)
    assert float(named.held_out) == pytest.approx(float(ours.held_out), rel=1e-6)
    two.obs["extra"] = 1
    studies = Studies([one, two])
    assert list(studies.obs) == ["kind", "lane"]  # what all of them have
    assert studies.obs["kind"].tolist() == [*one.obs["kind"], *two.obs["kind"]]


def test_types_count_the_same_however_few_cells_they_have():
    draw = np.random.default_rng(0)
    rare = np.arange(600) < 12
    X = 0.1 * draw.normal(size=(600, 20))
    X[~rare, :10] += draw.normal(size=(588, 1))  # varies among the many cells of one type
    X[rare, 10:] += 2 * draw.normal(size=(12, 1))  # and among the few of the other
    cells = anndata.AnnData(X)
    cells.obs["kind"] = np.where(rare, 2, 7)  # numbers are labels, too
    cells.obs["weight"] = np.where(rare, 1 / 12, 1 / 588)
    cells.var["weight"] = (np.arange(20) >= 10) + 0.0
    fixed = {**QUICK, "inplace": False}
    assert select_genes(cells, 1, **fixed).indices[0] < 10
    balanced = select_genes(cells, 1, cell_type_key="kind", **fixed)
    assert balanced.indices[0] >= 10
    named = select_genes(cells, 1, cell_weights="weight", **fixed)
    assert named.features == balanced.features
    assert float(named.held_out) == pytest.approx(float(balanced.held_out))
    given = select_genes(cells, 1, cell_weights=cells.obs["weight"].to_numpy(), **fixed)
    assert float(given.held_out) == pytest.approx(float(balanced.held_out))
    assert select_genes(cells, 1, weights="weight", **fixed).indices[0] >= 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cell_weights": "mass"}, "cell_weights='mass' is not in obs"),
        ({"cell_weights": [1.0]}, r"cell_weights has shape \(1,\)"),
        ({"cell_type_key": "same"}, "cell_type_key='same' has one group only"),
        ({"sample_weight": [1.0]}, "sample_weight= is called cell_weights= here"),
        ({"weights": "mass"}, "weights='mass' is not in var"),
        ({"weights": "note"}, "weights='note' is a column of object, not of numbers"),
        ({"cell_type_key": "own"}, "'own' has 400 values in 400 cells, so it is not a type"),
        ({"cell_type_key": "kind", "likelihood": "nb"}, "cells cannot be weighted together"),
    ],
)
def test_weights_that_cannot_be(cells, options, words):
    other = cells.copy()
    other.obs["same"] = "one"
    other.obs["own"], other.var["note"] = other.obs_names, pd.Series(["x"] * D, dtype=object).array
    with pytest.raises(InputError, match=words):
        select_genes(other, 3, **QUICK, **options)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda many: many[:1], {}, "at least two studies"),
        (lambda many: many, {"study_weights": {"one": 1}}, "a weight for each of 'study 1'"),
        (lambda many: many, {"study_weights": "same"}, "study_weights"),
        (lambda many: many[0], {"study_weights": "equal"}, "for several studies"),
        (lambda many: many, {"study_weights": {"study 1": 1, "study 2": 0}}, "'study 2'.*above 0"),
        (lambda many: many, {"cell_type_key": "sort"}, "'sort' is not in obs, which has 'kind'"),
        (lambda many: many, {"likelihood": "nb"}, "likelihood is for a single study"),
    ],
)
def test_studies_that_cannot_be_combined(change, options, words):
    with pytest.raises(InputError, match=words):
        select_genes(change([make_cells(30), make_cells(40)]), 3, **options)


def test_studies_without_a_gene_or_a_unit_in_common():
    one, two = make_cells(30), make_cells(40)
    two.var_names = pd.Index([f"ENSG{j}" for j in range(D)], dtype=object)
    with pytest.raises(InputError, match="no gene is in all studies"):
        select_genes([one, two], 3)
    two = make_cells(40)
    two.X = np.log1p(two.X.toarray())
    with pytest.raises(InputError, match="different units"):
        select_genes([one, two], 3)


# -- more genes than fit ---------------------------------------------------------------------------


def test_many_genes_are_chosen_in_stages(monkeypatch, tmp_path):
    from fewer.anndata import large

    cells = make_cells(2000)
    whole = select_genes(cells, 4, noise=None, **QUICK, inplace=False)
    monkeypatch.setattr(large, "MOST_GENES", 20)
    monkeypatch.setattr(large, "VARIABLE_GENES", 20)
    monkeypatch.setattr(large, "is_wide", lambda source: False)
    monkeypatch.setattr(large, "EVIDENCE_CELLS", 300)
    monkeypatch.setattr(large, "WIDE", 0.1)
    loud = np.argsort(-read_all(open_cells(cells)).var(0))[:20]
    quiet = f"gene{np.setdiff1d(np.arange(D), loud)[0]}"
    staged = select_genes(cells, 4, include=[quiet], **QUICK)
    assert staged.settings["stages"]["genes"] == 20
    assert quiet in staged.features
    assert "noise" not in staged.settings["cells"]  # the score is of what is measured
    options = {"costs": np.ones(D), "budget": 4.0, "exclude": [quiet]}
    free = select_genes(cells, 4, noise=None, **options, **QUICK)
    assert free.features == whole.features
    assert free.d == D
    new = make_cells(300, seed=9)
    x = read_all(open_cells(new, like=free))
    near = free.reconstructor.decode(x[:, free.indices])
    same = whole.reconstructor.decode(x[:, whole.indices])
    assert np.abs(near - same).max() < 0.2 * x.std()
    free.save(tmp_path / "panel")
    assert fewer.Panel.load(tmp_path / "panel").features == whole.features
    typed = select_genes(cells, 4, groupby="kind", **QUICK)
    assert typed.target is not None
    assert typed.target.held_out > 0.5
    with pytest.raises(InputError, match="groups need a covariance of all 30 genes"):
        select_genes(cells, 4, groups=[["gene1", "gene2"]], **QUICK)
    with pytest.raises(InputError, match="weights of cells need a covariance of all 30 genes"):
        select_genes(cells, 4, cell_type_key="kind", **QUICK)


def test_options_of_some_genes_only():
    options = {
        "costs": {"hours": {"a": 1.0, "b": 2.0}, "euros": np.arange(4.0)},
        "weights": pd.Series({"a": 2.0, "b": 3.0}),
        "noise": 0.5,
        "exclude": ["b", "c"],
    }
    found = for_genes(options, list("abcd"), np.array([0, 2]))
    assert found["costs"]["hours"] == {"a": 1.0}
    assert found["costs"]["euros"].tolist() == [0.0, 2.0]
    assert (found["weights"], found["noise"], found["exclude"]) == ({"a": 2.0}, 0.5, ["c"])


# -- names, other containers, plots ----------------------------------------------------------------


def test_genes_are_named_by_a_column_of_var(cells, tmp_path):
    plain = select_genes(cells, 4, **QUICK, inplace=False)
    named = cells.copy()
    named.var["symbol"] = [f"S{j}" if j != 7 else "S6" for j in range(D)]
    named.var_names = pd.Index([f"ENSG{j}" for j in range(D)], dtype=object)
    panel = select_genes(named, 4, gene_symbols="symbol", **QUICK)
    assert panel.indices.tolist() == plain.indices.tolist()
    assert panel.names[7] == "S6 (ENSG7)"
    assert named.var_names[named.var["fewer_selected"]].tolist() == [
        f"ENSG{j}" for j in panel.indices
    ]
    assert impute(named[:5].copy(), panel).layers["fewer"].shape == (5, D)
    spatial = named[:5, panel.indices].copy()
    spatial.var_names = pd.Index(panel.features, dtype=object)  # by symbol, without the column
    del spatial.var["symbol"]
    assert impute(spatial, panel, totals=np.full(5, 50.0)).shape == (5, D)
    limits = probe_limits(named, similar=[["S1", "S2"]], exclude=["S3"], gene_symbols="symbol")
    assert (limits["exclude"], [*limits["sets"].values()]) == (["S3"], [["S1", "S2"]])
    file = write_gene_list(panel, tmp_path / "genes.csv", data=named, columns=["fewer_gain"])
    table = pd.read_csv(file)
    assert {*table["id"]} == {f"ENSG{j}" for j in panel.indices}
    assert table["gain"].tolist() == pytest.approx(table["fewer_gain"].tolist())
    with pytest.raises(InputError, match="gene_symbols='name' is not in var, which has 'symbol'"):
        select_genes(named, 4, gene_symbols="name")
    with pytest.raises(InputError, match="'colour' is not in var, which has 'symbol', 'fewer"):
        write_gene_list(panel, tmp_path / "genes.csv", data=named, columns=["colour"])
    with pytest.raises(InputError, match="give data= as well"):
        write_gene_list(panel, tmp_path / "genes.csv", ids="symbol")


def test_containers_of_several_tables(cells):
    class SpatialData:
        def __init__(self, **tables):
            self.tables = tables

    class MuData:
        def __init__(self, **mod):
            self.mod = mod

    for data in (SpatialData(table=cells), MuData(rna=cells, protein=cells[:, :3])):
        assert open_cells(data).shape == (N, D)
    assert select_genes(SpatialData(table=cells), 3, **QUICK).k == cells.var["fewer_selected"].sum()
    with pytest.raises(InputError, match=r"several parts .*'a', 'b'.*data.tables\['name'\]"):
        open_cells(SpatialData(a=cells, b=cells))


def test_gains_of_types_and_genes_are_called_that(cells, tmp_path):
    panel = select_genes(cells, 4, groupby="kind", **QUICK)
    what = "explained variance of kind and of all features, by their weights"
    assert cells.uns["fewer"]["gain"] == what
    assert what in panel.report(tmp_path / "typed.html").read_text(encoding="utf-8")
    axes = fewer.pl.curve(cells)
    assert axes.get_ylabel() == what.replace("features", "genes")
    assert axes.get_legend().get_texts()[0].get_text().startswith("explained variance of all genes")
    select_genes(cells, 4, groupby="kind", reconstruct=0, **QUICK)
    assert cells.uns["fewer"]["gain"] == "explained variance of kind"


def test_plots_show_the_panel_in_its_order(cells):
    panel = select_genes(cells, 5, **QUICK)
    ranked = [str(panel.names[j]) for j in panel.evidence.order]
    axes = fewer.pl.curve(cells)
    assert axes.get_ylabel() == "explained variance"
    line = axes.get_lines()[0].get_ydata()
    np.testing.assert_allclose(line, np.cumsum(panel.evidence.gains))
    axes = fewer.pl.dotplot(cells, "kind", n_genes=3)
    assert [text.get_text() for text in axes.get_xticklabels()] == ranked[:3]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["B", "NK", "T"]
    dense = cells.X.toarray()[:, [cells.var_names.get_loc(name) for name in ranked[:3]]]
    expressed = [(dense[cells.obs["kind"] == kind] > 0).mean(0) for kind in ("B", "NK", "T")]
    np.testing.assert_allclose((axes.collections[0].get_sizes() - 5) / 95, np.ravel(expressed))
    with pytest.raises(InputError, match="there is no panel 'other'"):
        fewer.pl.curve(cells, key="other")
    with pytest.raises(InputError, match="groupby='sort' is not in obs"):
        fewer.pl.dotplot(cells, "sort")
    assert fewer.pl.dotplot(cells, "kind", ax=axes) is axes
    cells.var["fewer_gain"] = np.nan
    with pytest.raises(InputError, match="the panel 'fewer' was made without gains"):
        fewer.pl.curve(cells)


@pytest.mark.filterwarnings("ignore")  # of what scanpy does inside
def test_two_umaps(cells):
    pytest.importorskip("scanpy", reason="scanpy is not installed")
    select_genes(cells, 5, **QUICK)
    before = cells.copy()
    axes = fewer.pl.panel_umap(cells, "kind")
    assert [ax.get_title() for ax in axes] == ["all 30 genes", "5 chosen genes"]
    assert [*cells.obsm] == [*before.obsm]


# -- counts ----------------------------------------------------------------------------------------


def test_regressions_are_those_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(0)
    x, rates = draw.normal(size=(800, 3)), draw.uniform(0.5, 2, 800)
    y = draw.poisson(rates[:, None] * np.exp(x @ draw.normal(size=(3, 4)) * 0.5 + [0, 1, -1, 2]))
    args = torch.from_numpy(x), torch.from_numpy(y).float(), torch.from_numpy(rates)
    model = _Model.fit(*args, "poisson", 1e-9)
    for gene in range(4):
        other = linear.PoissonRegressor(alpha=0, max_iter=1000, tol=1e-9)
        other.fit(x, y[:, gene] / rates, sample_weight=rates)
        np.testing.assert_allclose(model.weight[gene], other.coef_, atol=2e-3)
        np.testing.assert_allclose(model.bias[gene], other.intercept_, atol=2e-3)
    wide = draw.negative_binomial(2.0, 2.0 / (2.0 + 5 * np.exp(0.5 * x[:, :1]) * np.ones((800, 2))))
    found = _Model.fit(args[0], torch.from_numpy(wide).float(), torch.ones(800), "nb", 1e-6)
    np.testing.assert_allclose(found.dispersion, 0.5, atol=0.15)
    np.testing.assert_allclose(found.weight[:, 0], 0.5, atol=0.1)


@pytest.mark.parametrize("likelihood", ["poisson", "nb"])
def test_decoders_of_counts(cells, likelihood, tmp_path):
    plain = select_genes(cells, 5, noise=None, **QUICK, inplace=False)
    panel = select_genes(cells, 5, likelihood=likelihood, **QUICK)
    assert panel.features == plain.features
    scores = panel.settings["counts"]
    assert 0.1 < scores["deviance_explained"] < 1
    assert 0.3 < scores["correlation"] < 1
    new = make_cells(200, seed=8)
    x = read_all(open_cells(new, like=panel))[:, panel.indices]
    rates = np.expm1(panel.reconstructor.decode(x))
    assert (rates >= 0).all()
    np.testing.assert_allclose(rates[:, panel.indices], np.expm1(x), rtol=1e-6)
    total = np.asarray(new.X.sum(1)).ravel()[:, None] / 1e4
    others = np.setdiff1d(np.arange(D), panel.indices)
    expected = (rates * total)[:, others].sum(0)
    counted = new.X.toarray()[:, others].sum(0)
    assert np.median(np.abs(expected / counted - 1)) < 0.08
    assert expected.sum() == pytest.approx(counted.sum(), rel=0.05)
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    np.testing.assert_allclose(again.reconstructor.decode(x), panel.reconstructor.decode(x))
    with pytest.raises(InputError, match="no held-out residuals"):
        panel.reconstruct(x, interval=0.9)


@pytest.mark.parametrize(
    "options", [{}, {"validation": 3}, {"validation": np.arange(N) < 90}, {"batch_key": "lane"}]
)
def test_decoders_of_counts_are_scored_themselves(options, tmp_path):
    cells = make_cells()
    panel = select_genes(cells, 5, likelihood="poisson", **QUICK | options)
    linear = panel.settings["counts"]["linear_held_out"]
    new = panel.score(make_cells(2000, seed=8))
    assert abs(panel.held_out - new) < 2.5 * panel.held_out.standard_error
    assert linear - new > 0.1
    assert panel.estimates["units"].value == panel.held_out
    assert 0 < panel.held_out.standard_error < 0.1
    assert "scored is the decoder of counts" in panel.settings["protocol"]
    np.testing.assert_array_equal(panel.evidence.errors, panel.held_out.errors)
    panel.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    assert again.held_out == panel.held_out
    assert f"{100 * panel.held_out:.1f}\u00a0%" in again.report(tmp_path / "a.html").read_text()
    for change in (lambda: panel.without(panel.features[0]), lambda: fewer.attach(again, cells)):
        with pytest.raises(InputError, match="regression of counts on its own genes"):
            change()


def test_likelihoods_need_counts(cells):
    cells.X = np.log1p(cells.X.toarray())
    with pytest.raises(InputError, match="likelihood='nb' needs raw counts"):
        select_genes(cells, 3, likelihood="nb", **QUICK)
    with pytest.raises(InputError, match="likelihood"):
        select_genes(cells, 3, likelihood="normal", **QUICK)


# -- the instrument that a panel is for ------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared():
    cells = make_cells(1500)
    options = {"inplace": False, **QUICK}
    plain = select_genes(cells, 6, noise=None, **options)
    ready = select_genes(cells, 6, platform=Platform(efficiency=0.2, lost=1), **options)
    return plain, ready


def spots(panel, efficiency=0.2, lost=(), seed=11):
    """New cells as an instrument measures them, and what they would read in full."""
    new = make_cells(600, seed=seed)
    counts = new.X.toarray()
    truth = logged(counts)
    found = np.random.default_rng(0).binomial(counts.astype(int), efficiency).astype(np.float32)
    part = anndata.AnnData(found[:, panel.indices])
    part.var_names = pd.Index(panel.features, dtype=object)
    part.X[:, list(lost)] = np.nan
    return part, truth


def missed(rebuilt, truth):
    return ((rebuilt - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum()


@pytest.mark.parametrize("lost", [(), (2,)])
def test_a_prepared_panel_loses_less_than_half(prepared, lost):
    plain, ready = prepared
    _, truth = spots(plain)
    full = missed(plain.reconstructor.decode(truth[:, plain.indices]), truth)
    errors = []
    for panel in prepared:
        part, _ = spots(panel, lost=lost)
        with warnings.catch_warnings(action="ignore"):
            errors.append(missed(impute(part, panel).X, truth))
    assert errors[1] - full < 0.5 * (errors[0] - full)
    if not lost:
        assert 1 - errors[1] == pytest.approx(float(ready.held_out), abs=0.06)


def test_intervals_of_a_prepared_panel_are_of_its_own_genes_too(prepared, tmp_path):
    _, ready = prepared
    part, truth = spots(ready)
    ready.save(tmp_path / "panel")
    _, low, high = (np.asarray(one) for one in ready.reconstruct(part, interval=0.9))
    for genes in (ready.indices, np.setdiff1d(np.arange(D), ready.indices)):
        inside = (truth >= low)[:, genes] & (truth <= high)[:, genes]
        assert 0.85 < inside.mean() < 0.95
    again = fewer.Panel.load(tmp_path / "panel").reconstruct(part, interval=0.9)[1]
    np.testing.assert_allclose(again, low, atol=1e-4)


def test_a_prepared_panel_takes_any_depth_and_is_saved(prepared, tmp_path):
    _, ready = prepared
    ready.save(tmp_path / "panel")
    again = fewer.Panel.load(tmp_path / "panel")
    part, _ = spots(ready)
    np.testing.assert_allclose(impute(part, again).X, impute(part, ready).X, atol=1e-4)
    deep, _ = spots(ready)
    deep.X *= 7  # only the proportions count
    np.testing.assert_allclose(impute(deep, again).X, impute(part, again).X, atol=1e-4)
    whole = make_cells(20, seed=12)
    assert impute(whole, ready).shape == (20, D)
    part.X = np.log1p(part.X)
    with pytest.raises(InputError, match="for measured counts"):
        impute(part, ready)
    again.settings["platform"]["calibration"]["weights"] = "AAAA"
    with pytest.raises(InputError, match="calibration of this panel is damaged"):
        impute(spots(ready)[0], again)


def test_a_prepared_panel_is_not_compared_with_itself(tmp_path):
    cells = make_cells(300)
    options = {"include": ["gene3"], "inplace": False, **QUICK}
    panel = select_genes(cells, 4, platform=Platform(efficiency=0.25), **options)
    page = panel.report(tmp_path / "panel.html").read_text(encoding="utf-8")
    about = summarise(panel)
    assert not about["bars"]
    assert about["stability"] is about["chance"] is about["size"] is None
    assert set(about["curve"]["lines"]) == {"panel", "pca"}
    assert about["settings"]["platform"].startswith("efficiency 0.25, background 0, lost 0")
    assert panel.settings["platform"]["calibration"]["weights"] not in page
    names = {"data": cells}
    call = python_of(panel.evidence).replace("data = ...", "# data")
    assert "platform=Platform(efficiency=0.25, background=0.0, lost=0)" in call
    exec(call, names)
    assert names["panel"].features == panel.features
    panel.save(tmp_path / "panel")
    fewer.Panel.load(tmp_path / "panel").report(tmp_path / "again.html")
    with pytest.raises(InputError, match="no options of the command line do"):
        panel.to_config()


def test_a_prepared_panel_is_not_changed_by_hand(prepared):
    _, ready = prepared
    for change in (
        lambda: ready.shrink(3),
        lambda: ready.extend(8),
        lambda: ready.without(ready.features[0]),
        lambda: ready.swap(ready.features[0], "gene0"),
        lambda: fewer.attach(ready, make_cells(20)),
    ):
        with pytest.raises(InputError, match="choose again with select_genes"):
            change()
    for read in (ready.score, ready.transform):
        with pytest.raises(InputError, match="reads only its own genes"):
            read(make_cells(20))
    assert ready.reconstruct(spots(ready)[0]).shape == (600, D)


def test_a_lost_probe_is_estimated_from_the_others():
    draw = np.random.default_rng(0)
    level = draw.gamma(3.0, size=(4000, 2)) @ np.array([[1, 1, 0.2, 3], [0.1, 0.3, 1, 3.0]])
    counts = draw.poisson(20 * level).astype(float)
    full = np.log1p(1e4 * level / 200)
    found = Calibration.fit(counts, full, 1e4)
    complete = found.values(counts)
    gone = counts.copy()
    gone[::2, 1] = np.nan
    estimated = found.values(gone)
    np.testing.assert_allclose(estimated[1::2], complete[1::2])
    wanted = full[::2, 1]
    assert ((estimated[::2, 1] - wanted) ** 2).mean() < 0.9 * wanted.var()


def test_noisy_genes_are_not_chosen_for_a_platform():
    draw = np.random.default_rng(0)
    signal = draw.gamma(2.0, size=(800, 1))
    loud = draw.poisson(np.repeat(signal, 5, 1) * 20)
    faint = draw.poisson(np.repeat(signal, 10, 1) * 0.3)
    rest = draw.poisson(20.0, size=(800, 5))
    cells = anndata.AnnData(np.hstack([faint, loud, rest]).astype(np.float32))
    panel = select_genes(cells, 2, platform=Platform(0.1), **QUICK)
    assert ((panel.indices >= 10) & (panel.indices < 15)).any()
    limits = {"sets": {"loud": [str(j) for j in range(10, 15)]}, "at_most": {"loud": 0}}
    other = select_genes(cells, 2, platform=Platform(0.1), exclude=["0"], **limits, **QUICK)
    assert not {*other.features} & {"0", *limits["sets"]["loud"]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groupby": "kind"}, "platform cannot be combined with groupby"),
        ({"batch_key": "lane"}, "platform cannot be combined with batches"),
        ({"robust_to": 1}, "lost= of the platform is for that"),
        ({"platform": 0.2}, "give Platform"),
        ({"platform": Platform(lost=3)}, "lost=3 of k=3 probes"),
        ({"counts": "none"}, "platform needs raw counts"),
    ],
)
def test_platforms_that_cannot_be_modelled(cells, options, words):
    with pytest.raises(InputError, match=words):
        select_genes(cells, 3, **{"platform": Platform(0.5), **QUICK, **options})


def test_a_panel_for_a_platform_records_its_costs(cells):
    prices = {"costs": dict.fromkeys(cells.var_names, 2.0), "budget": 7.0}
    panel = select_genes(cells, 3, platform=Platform(0.5), **prices, **QUICK)
    assert (panel.settings["cost"], panel.settings["budget"]) == (6.0, 7.0)
    assert panel.settings["costs"] == [2.0] * 3


def test_platforms_are_for_some_thousand_genes(cells, monkeypatch):
    with pytest.raises(InputError, match="k='auto': with platform, give a number of genes"):
        select_genes(cells, "auto", platform=Platform(0.5), **QUICK)
    monkeypatch.setattr("fewer.anndata.platform.MOST_GENES", 20)
    with pytest.raises(InputError, match="platform compares all genes at once, at most 20, not 30"):
        select_genes(cells, 3, platform=Platform(0.5), **QUICK)


def test_counts_of_the_background_are_added():
    counts = np.full((2000, 2), 100.0)
    found = Platform(0.2, background=3.0).measure(counts, np.random.default_rng(0))
    np.testing.assert_allclose(found.mean(0), 23.0, atol=0.5)


def test_platforms_that_cannot_be():
    for options in ({"efficiency": 0.0}, {"efficiency": 1.5}, {"background": -1}, {"lost": -1}):
        with pytest.raises(InputError, match=next(iter(options))):
            Platform(**options)


def test_the_decoder_is_linear_where_it_is_left_open():
    """So that the noise of counting is known, as without the option."""
    draw = np.random.default_rng(0)
    counts = draw.poisson(draw.gamma(2.0, size=(200, 1)) * draw.gamma(1.0, size=12))
    cells = anndata.AnnData(counts.astype(np.float32))
    plain = select_genes(cells, 3, inplace=False, **QUICK)
    left_open = select_genes(cells, 3, decoder="auto", inplace=False, **QUICK)
    assert left_open.features == plain.features
    assert left_open.held_out == plain.held_out
    assert "noise" in left_open.settings["protocol"]
