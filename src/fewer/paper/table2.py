"""Table 2: accuracy of a classifier on k chosen features, all methods."""

from __future__ import annotations

from fewer.paper.context import Context, Outcome
from fewer.paper.published import ACCURACIES, SIZES
from fewer.paper.score_page import figure_of, page_of
from fewer.paper.scores import score_table

__all__ = ["run"]

ABOUT = """# Table 2: classification accuracy on the chosen features

Share of test rows that 50 extremely randomised trees classify rightly from the k chosen features
(k = 50, Mice: 10); higher is better. No method saw a label. The same choices as in table 1.
"paper" rows: the published figures; HAR stands in for the paper's "Activity", another set."""

NEAREST = """## The same with the nearest neighbour as classifier"""


def run(context: Context) -> Outcome:
    """Accuracies of the choices of table 1, by trees and by the nearest neighbour."""
    scores = score_table(context, SIZES)
    page = page_of(context, scores, ABOUT, "trees", 3, ACCURACIES, {}, lowest=False)
    page += "\n\n" + page_of(context, scores, NEAREST, "nearest", 3, {}, {}, lowest=False)
    figure = figure_of(scores, "trees", "test accuracy, 50 trees", relative=False)
    return Outcome({"scores": scores, "published": ACCURACIES}, page, {"table2": figure})
