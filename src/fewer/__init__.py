"""Measure fewer features, reconstruct the rest.

Names are loaded when they are first used, so that ``fewer --help`` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {  # the other names are modules
    "PAPER": "estimators",
    "ColumnSubset": "estimators",
    "ConcreteAutoencoder": "estimators",
    "ConcreteClassifier": "estimators",
    "ConcreteRegressor": "estimators",
    "Panel": "panel",
    "Reach": "selection",
    "attach": "selection",
    "score": "assess",
    "select": "selection",
}

__all__ = [
    "PAPER",
    "ColumnSubset",
    "ConcreteAutoencoder",
    "ConcreteClassifier",
    "ConcreteRegressor",
    "Panel",
    "Reach",
    "__version__",
    "anndata",
    "assess",
    "attach",
    "baselines",
    "callbacks",
    "data",
    "datasets",
    "distributed",
    "errors",
    "export",
    "nn",
    "pl",
    "score",
    "select",
]

if TYPE_CHECKING:
    from fewer import (
        anndata,
        assess,
        baselines,
        callbacks,
        data,
        datasets,
        distributed,
        errors,
        export,
        nn,
        pl,
    )
    from fewer.assess import score
    from fewer.estimators import (
        PAPER,
        ColumnSubset,
        ConcreteAutoencoder,
        ConcreteClassifier,
        ConcreteRegressor,
    )
    from fewer.panel import Panel
    from fewer.selection import Reach, attach, select


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fewer' has no attribute {name!r}")
    home = import_module(f"fewer.{_HOMES.get(name, name)}")
    return getattr(home, name) if name in _HOMES else home


def __dir__() -> list[str]:
    return sorted(__all__)
