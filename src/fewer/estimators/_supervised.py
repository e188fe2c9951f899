"""What the two supervised estimators add: a linear reconstruction beside the predictor."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from fewer.estimators._concrete import ConcreteEstimator
from fewer.estimators._selector import filled_decoder
from fewer.nn import MeasuredDecoder
from fewer.train import fit_linear

__all__ = ["SupervisedEstimator"]


class SupervisedEstimator(ConcreteEstimator):
    """Base of classifier and regressor."""

    _auto_decoder = (100,)

    def _fit(self, X: Any, targets: Tensor | None = None, out: int | None = None) -> Self:
        super()._fit(X, targets, out)
        source, stats = self._opened(X)
        columns = self.columns_
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
        super()._restore_extra(meta, tensors)
        net = nn.Linear(len(self.columns_), self.n_features_in_)
        self.reconstruction_ = filled_decoder(net, "reconstruction", tensors, {"link": None})
