"""Autoencoder feature selection: an autoencoder whose first layer ignores most features."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewer._checks import check_number, check_whole
from fewer.baselines._base import RowRankingBaseline, Values, row_lengths
from fewer.train.device import pick_device, seeded

__all__ = ["AEFS", "ALPHAS", "first_layer"]

ALPHAS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
SMOOTH = 1e-3  # rows of the first layer shorter than this are penalised by their square


def first_layer(
    rows: Tensor, hidden: int, *, alpha: float, beta: float, max_iter: int
) -> tuple[NDArray[np.float32], list[float]]:
    r"""Weights (d x hidden) of the first layer of a sparse autoencoder; objective per evaluation.

    .. math:: \min \frac{1}{2n} |X - f(g(X))|^2 + \alpha \sum_i |w_i|
        + \frac{\beta}{2} (|W_1|^2 + |W_2|^2)

    with :math:`g(X) = \sigma(X W_1 + b_1)`, :math:`f(Z) = Z W_2 + b_2` and :math:`w_i` the rows
    of :math:`W_1`; by L-BFGS on all rows at once, from a random start that torch's seed decides.
    """
    n, d = rows.shape
    encoder = nn.Linear(d, hidden, device=rows.device)
    decoder = nn.Linear(hidden, d, device=rows.device)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=max_iter, history_size=20, line_search_fn="strong_wolfe"
    )
    objective: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        residual = decoder(torch.sigmoid(encoder(rows))) - rows
        lengths = (encoder.weight.square().sum(0) + SMOOTH**2).sqrt()
        decay = encoder.weight.square().sum() + decoder.weight.square().sum()
        loss = residual.square().sum() / (2 * n) + alpha * lengths.sum() + beta / 2 * decay
        loss.backward()
        objective.append(loss.item())
        return loss

    optimizer.step(closure)
    return encoder.weight.detach().T.cpu().numpy(), objective


@dataclass(eq=False, repr=False, kw_only=True)
class AEFS(RowRankingBaseline):
    """Choose the features that an autoencoder's first layer relies on (Han and others, 2018).

    An autoencoder with one hidden layer of logistic units and an l2,1 penalty on the first layer,
    which drops whole features. A feature's score is the length of its row of weights there.
    Features are centred and divided by the root of their mean variance. Choose ``alpha`` by
    `sweep` on held-out rows.

    Parameters
    ----------
    {k}
    hidden : int, default=128
        Width of the hidden layer.
    alpha : float, default=1.0
        Penalty on the lengths of the rows of the first layer; `ALPHAS` is a grid to sweep.
    beta : float, default=0.01
        Penalty on all squared weights, halved.
    max_iter : int, default=200
        Maximum number of L-BFGS steps.
    {device}
    random_state : int, RandomState or None, default=None
        Seed of the initial weights.

    Attributes
    ----------
    {ranked}
    scores_ : ndarray of shape (n_features,)
        Length of each feature's row of weights.
    objective_ : float
        Final value of the objective.
    n_iter_ : int
        Number of evaluations.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> chosen = AEFS(k=10, hidden=20, max_iter=20, random_state=0).fit(X[:500])
    >>> chosen.score(X[1400:]) > 0.4
    True
    """

    _saved: ClassVar[dict[str, str]] = RowRankingBaseline._saved | {
        "n_iter_": "optional",
        "objective_": "optional",
    }
    hidden: int = 128
    alpha: float = 1.0
    beta: float = 0.01
    max_iter: int = 200
    device: str = "auto"
    random_state: Any = None

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_whole("hidden", self.hidden)
        check_whole("max_iter", self.max_iter)
        check_number("alpha", self.alpha)
        check_number("beta", self.beta)

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        device = pick_device(self.device)
        scale = np.sqrt(np.square(rows).mean())
        x = torch.from_numpy((rows / scale).astype(np.float32)).to(device)
        with seeded(int(rng.randint(2**31 - 1)), device):
            W, objective = first_layer(
                x, self.hidden, alpha=self.alpha, beta=self.beta, max_iter=self.max_iter
            )
        self.objective_, self.n_iter_ = objective[-1], len(objective)
        return row_lengths(W.astype(np.float64))
