"""What a panel predicts besides the other features: a class or numbers that a user gave."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from fewer.errors import InputError
from fewer.estimators._selector import decode
from fewer.nn import MeasuredDecoder, build_decoder
from fewer.storage import describe_labels, restore_decoder, restore_labels

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
    single_output : bool
        Whether the target is a single number per row.

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
    single_output: bool = True

    def predict(self, measured: NDArray) -> NDArray:
        """Likeliest class, or the number."""
        values = decode(self.decoder, measured)
        if self.classes is not None:
            return self.classes[values.argmax(axis=1)]
        return values[:, 0] if self.single_output else values

    def probabilities(self, measured: NDArray) -> NDArray:
        """Probability of each class."""
        if self.classes is None:
            raise InputError("the target of this panel is a number, not a class; use predict")
        return decode(self.decoder, measured)

    def describe(self) -> dict[str, Any]:
        """What a saved panel says about its target."""
        labels, dtype = (None, None) if self.classes is None else describe_labels(self.classes)
        return {
            "name": self.name,
            "classes": labels,
            "dtype": dtype,
            "held_out": self.held_out,
            "single_output": self.single_output,
            "outputs": int(self.decoder(self.decoder.fill[None]).shape[1]),
            "link": self.decoder.link,
        }

    @classmethod
    def restored(cls, about: dict[str, Any], spec: Any, k: int, tensors: dict[str, Tensor]) -> Any:
        """The target of a saved panel, its decoder built by ``spec``."""
        classes = None
        if about["classes"] is not None:
            classes = restore_labels(about["classes"], about["dtype"])
        net = build_decoder(spec, k, about["outputs"])
        decoder = restore_decoder(net, "target", tensors, about["link"])
        return cls(decoder, classes, about["held_out"], about["name"], about["single_output"])
