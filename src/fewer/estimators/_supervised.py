"""What the two supervised estimators add: a linear reconstruction beside the predictor."""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fewer.data import moments, open_source
from fewer.estimators._concrete import ConcreteEstimator, _filled
from fewer.nn import MeasuredDecoder
from fewer.train import fit_linear

__all__ = ["SupervisedEstimator"]


class SupervisedEstimator(ConcreteEstimator):
    """Base of classifier and regressor."""

    _auto_decoder = (100,)

    def _fit(self, X: Any, targets: Tensor | None = None, out: int | None = None) -> Self:
        super()._fit(X, targets, out)
        source = open_source(X)
        stats = moments(source)
        columns = np.sort(self.nodes_)
        fill = torch.from_numpy(stats.mean[columns])
        linear = fit_linear(source, columns, stats, ridge=self.ridge)
        self.reconstruction_ = MeasuredDecoder(linear, fill=fill).eval()
        return self

    @property
    def _reconstructor(self) -> MeasuredDecoder:
        return self.reconstruction_

    def _modules(self) -> dict[str, MeasuredDecoder]:
        return {**super()._modules(), "reconstruction": self.reconstruction_}

    def _restore_extra(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        net = nn.Linear(len(self.nodes_), self.n_features_in_)
        self.reconstruction_ = _filled(net, "reconstruction", tensors, {"link": None})
