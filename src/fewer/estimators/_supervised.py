"""What the two supervised estimators add: a linear reconstruction beside the predictor."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewer.data import Moments, Source
from fewer.estimators._concrete import ConcreteEstimator
from fewer.nn import MeasuredDecoder
from fewer.storage import restore_decoder
from fewer.train import fit_linear

__all__ = ["SupervisedEstimator"]


class SupervisedEstimator(ConcreteEstimator):
    """Base of classifier and regressor."""

    _auto_decoder = (100,)

    def _fit_more(self, source: Source, stats: Moments, columns: np.ndarray) -> None:
        fill = torch.from_numpy(stats.mean[columns])
        linear = fit_linear(source, columns, stats, ridge=self.ridge)
        self.reconstruction_ = MeasuredDecoder(linear, fill=fill).eval()

    @property
    def _reconstructor(self) -> MeasuredDecoder:
        return self.reconstruction_

    def _modules(self) -> dict[str, MeasuredDecoder]:
        return {**super()._modules(), "reconstruction": self.reconstruction_}

    def _restore_extra(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super()._restore_extra(meta, tensors)
        net = nn.Linear(len(self.columns_), self.n_features_in_)
        self.reconstruction_ = restore_decoder(net, "reconstruction", tensors, None)
