"""What a panel predicts besides the other features: a class or numbers that a user gave."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fewer.errors import FileFormatError, InputError
from fewer.estimators._selector import decode, filled_decoder
from fewer.nn import MeasuredDecoder, build_decoder

__all__ = ["Target"]


@dataclass(frozen=True, eq=False)
class Target:
    """A predictor of the target from the k measured values.

    Attributes
    ----------
    decoder : MeasuredDecoder
        Probabilities of the classes, or the target itself.
    classes : ndarray or None
        The labels; None where the target is a number.
    held_out : float
        Accuracy, or R squared, on held-out rows: the predictor was not fitted on them, but they
        chose between the strategies.
    name : str or None
        The column that the target was.
    one : bool
        Whether the target is a single number a row.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> panel = fewer.select(X, 2, target=y, strategies=["search"], validation=0.2, random_state=0)
    >>> panel.target.classes, panel.target.held_out > 0.8
    (array([0, 1, 2]), True)
    """

    decoder: MeasuredDecoder
    classes: NDArray | None
    held_out: float
    name: str | None = None
    one: bool = True

    def predict(self, measured: NDArray) -> NDArray:
        """Likeliest class, or the number."""
        values = decode(self.decoder, measured)
        if self.classes is not None:
            return self.classes[values.argmax(axis=1)]
        return values[:, 0] if self.one else values

    def probabilities(self, measured: NDArray) -> NDArray:
        """Probability of each class."""
        if self.classes is None:
            raise InputError("the target of this panel is a number, not a class; use predict")
        return decode(self.decoder, measured)

    def describe(self) -> dict[str, Any]:
        """What a saved panel says about its target."""
        labels = None if self.classes is None else self.classes.tolist()
        if labels is not None and not all(isinstance(x, (bool, int, float, str)) for x in labels):
            raise InputError("class labels must be numbers or strings to be saved")
        return {
            "name": self.name,
            "classes": labels,
            "dtype": None if self.classes is None else self.classes.dtype.str,
            "held_out": self.held_out,
            "one": self.one,
            "outputs": int(self.decoder(self.decoder.fill[None]).shape[1]),
            "link": self.decoder.link,
        }

    @classmethod
    def restored(cls, about: dict[str, Any], spec: Any, k: int, tensors: dict[str, Tensor]) -> Any:
        """The target of a saved panel, its decoder built by ``spec``."""
        classes = None
        if about["classes"] is not None:
            dtype = np.dtype(about["dtype"])
            if dtype.kind not in "biufUO":
                raise FileFormatError(f"class labels of type {dtype} are not known")
            classes = np.array(about["classes"], dtype=dtype)
        net = build_decoder(spec, k, about["outputs"])
        decoder = filled_decoder(net, "target", tensors, about)
        return cls(decoder, classes, about["held_out"], about["name"], about["one"])
