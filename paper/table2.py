"""Table 2: accuracy of a classifier on the features that table 1 scores, all methods."""

from __future__ import annotations

from paper.experiment import Context, Outcome
from paper.table1 import by_method, draw_scores, score_table, to_page

__all__ = ["run"]

ABOUT = """# Table 2: classification accuracy on the chosen features

Share of test rows that 50 extremely randomised trees classify correctly from the k chosen features
(k = 50, Mice: 10); higher is better. No method saw a label. The same choices as in table 1.
"paper" rows: the published figures; HAR stands in for the paper's "Activity", another set."""

NEAREST = """## The same with the nearest neighbour as classifier"""

ACCURACIES = by_method(
    {
        "mnist": (0.925, 0.646, 0.690, 0.892, 0.807, 0.852, 0.906),
        "fashion": (0.825, 0.517, 0.580, 0.547, 0.513, 0.683, 0.677),
        "coil20": (0.996, 0.389, 0.580, 0.556, 0.635, 0.642, 0.586),
        "mice": (0.721, 0.134, 0.125, 0.139, 0.139, 0.130, 0.134),
        "isolet": (0.895, 0.407, 0.576, 0.455, 0.522, 0.622, 0.685),
        "har": (0.796, 0.280, 0.240, 0.287, 0.295, 0.364, 0.420),
    }
)


def run(context: Context) -> Outcome:
    """Accuracies of the choices of table 1, by trees and by the nearest neighbour."""
    scores = score_table(context)
    page = to_page(context, scores, ABOUT, "trees", 3, ACCURACIES, {}, lowest=False)
    page += "\n\n" + to_page(context, scores, NEAREST, "nearest", 3, {}, {}, lowest=False)
    figure = draw_scores(scores, "trees", "test accuracy, 50 trees", relative=False)
    return Outcome({"scores": scores, "published": ACCURACIES}, page, {"table2": figure})
