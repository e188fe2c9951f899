"""Named sets of options."""

from types import MappingProxyType
from typing import Any

__all__ = ["PAPER"]

#: The settings of Abid, Balin and Zou (2019): one Adam rate of 0.001 for everything, the
#: temperature falling from 10 to 0.01 once an epoch, five tries, no scaling of any kind. The
#: paper gives no number of epochs or batch size for the small data sets; 300 epochs of batches
#: of 16 rows or more is what its authors' code does. Slow next to the defaults.
PAPER: MappingProxyType[str, Any] = MappingProxyType(
    {
        "solver": "gradient",
        "epochs": 300,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "selector_learning_rate": 1e-3,
        "schedule": "exponential",
        "start_temperature": 10.0,
        "end_temperature": 0.01,
        "anneal": "epoch",
        "draw": "batch",
        "logits": "direct",
        "stop_probability": 0.99,
        "tries": 5,
        "normalize": False,
    }
)
