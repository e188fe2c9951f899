"""Lines, compared on held-out rows."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.candidates.comparison import Candidate, Rows, price
from fewer.constraints import Constraints
from fewer.data import moments
from fewer.distributed import on_rank0
from fewer.nn import MeasuredDecoder
from fewer.search.objective import worth
from fewer.train import fit_linear
from fewer.train.folds import ScaledFold

__all__ = ["DECODER_RIDGES", "LinearComparison"]

DECODER_RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0)  # shares of the mean variance
LEVEL = 1.02  # lines within this ratio of the best on one held-out part: training rows decide


class LinearComparison:
    """Linear decoders: exact, from the covariances of the folds, with the penalty that does best.

    Parameters
    ----------
    rows : callable
        Scaled rows of a fold.
    constraints : Constraints
        For the price of panels.
    """

    def __init__(self, rows: Rows, constraints: Constraints) -> None:
        self.rows, self.constraints = rows, constraints

    def measure(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> None:
        """Errors with the penalty that does best over the folds."""
        variance = float(folds[0].train.diagonal().mean())
        penalties = DECODER_RIDGES if len(folds) > 1 else (0.0,)
        pairs = list(zip(folds, candidate.panels, strict=True))
        table = on_rank0(
            lambda: np.array(
                [
                    [fold.error(panel, ridge * variance, known=True) for ridge in penalties]
                    for fold, panel in pairs
                ]
            )
        )
        best = int(np.argmin(table.mean(axis=0)))
        candidate.errors = table[:, best].tolist()
        candidate.ridge = penalties[best] * variance
        candidate.price = price(candidate.panels, self.constraints)

    def gives_up(self, candidate: Candidate, folds: Sequence[ScaledFold]) -> bool:
        """Never: lines cost nothing."""
        return False

    def settle(self, candidates: Sequence[Candidate], folds: Sequence[ScaledFold]) -> None:
        """One held-out part: of those that are about level there, the best on the training rows.

        Rows are held out once where there are so many that a line hardly fits their noise. The
        choice of the part is then more luck than the nine times as many rows that the panels are
        chosen from. Folds use all rows, and decide by themselves.
        """
        if len(folds) > 1:
            return
        C = folds[0].train
        best = min(candidate.rank for candidate in candidates)
        near = [c for c in candidates if c.rank <= LEVEL * best]
        left = on_rank0(lambda: [worth(C, c.panels[0], self.constraints, 0.0) for c in near])
        for candidate, value in zip(near, left, strict=True):
            candidate.left = value

    def fitted(
        self, candidate: Candidate, columns: NDArray[np.int64], fold: ScaledFold
    ) -> MeasuredDecoder:
        """Least squares with the candidate's penalty."""
        part = self.rows(fold, fold.train_index)
        stats = moments(part)
        linear = fit_linear(part, columns, stats, ridge=candidate.ridge)
        fill = torch.from_numpy(stats.mean[columns])
        return MeasuredDecoder(linear, fill=fill, known=torch.from_numpy(columns)).eval()
