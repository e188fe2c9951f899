"""Table 1: reconstruction error of k features by linear regression, all methods."""

from __future__ import annotations

from fewer.paper.context import Context, Outcome
from fewer.paper.methods import METHODS
from fewer.paper.published import ERRORS, OFF_SCALE, SAME_DATA, SIZES
from fewer.paper.score_page import figure_of, page_of
from fewer.paper.scores import Scores, score_table
from fewer.paper.tables import markdown

__all__ = ["run"]

ABOUT = """# Table 1: reconstruction error with a linear decoder

Mean squared residual on test rows, over all features, of a linear regression without penalty from
the chosen features, k = 50 (Mice: 10), features in [0, 1]; lower is better. The same decoder for
every method, so that only the features are compared; *own decoder* is `fewer.select` with the
penalty that it chose by itself. "paper" rows: the published figures; † marks those that cannot be
on this scale (they exceed what any features in [0, 1] allow, or what random features give here).
HAR stands in for the paper's "Activity", which has the same features but is another set."""

PCA = """## PCA against the paper's PCA

The paper gives three decimals: its 0.008 stands for anything from 0.0075 to 0.0085."""


def run(context: Context) -> Outcome:
    """Score every method on every data set and set the published figures beside ours."""
    scores = score_table(context, SIZES)
    marks = {data: "†" if data in OFF_SCALE else "" for data in scores}
    page = page_of(context, scores, ABOUT, "error", 5, ERRORS, marks, lowest=True)
    page += "\n\n" + PCA + "\n\n" + _pca(scores)
    figure = figure_of(scores, "error", "test error / error of PCA", relative=True)
    return Outcome({"scores": scores, "published": ERRORS}, page, {"table1": figure})


def _pca(scores: Scores) -> str:
    rows = []
    for data, methods in scores.items():
        if data in ERRORS:
            ours = sum(cell["error"] for cell in methods["pca"]) / len(methods["pca"])
            theirs = ERRORS[data]["pca"]
            note = "" if data in SAME_DATA else "another set"
            rows.append([data, f"{ours:.4f}", f"{theirs:.3f}", f"{ours / theirs - 1:+.1%}", note])
    label = METHODS["pca"].label
    return markdown(["data", f"{label}, ours", "paper", "difference", "note"], rows)
