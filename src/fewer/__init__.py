"""Measure fewer features, reconstruct the rest.

Names are loaded when they are first used, so that ``fewer --help`` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "PAPER": "fewer.estimators",
    "ColumnSubset": "fewer.estimators",
    "ConcreteAutoencoder": "fewer.estimators",
    "ConcreteClassifier": "fewer.estimators",
    "ConcreteRegressor": "fewer.estimators",
    "Panel": "fewer.panel",
    "anndata": "fewer.anndata",
    "assess": "fewer.assess",
    "baselines": "fewer.baselines",
    "callbacks": "fewer.callbacks",
    "data": "fewer.data",
    "datasets": "fewer.datasets",
    "distributed": "fewer.distributed",
    "errors": "fewer.errors",
    "export": "fewer.export",
    "nn": "fewer.nn",
    "select": "fewer.selection",
}

__all__ = [
    "PAPER",
    "ColumnSubset",
    "ConcreteAutoencoder",
    "ConcreteClassifier",
    "ConcreteRegressor",
    "Panel",
    "__version__",
    "anndata",
    "assess",
    "baselines",
    "callbacks",
    "data",
    "datasets",
    "distributed",
    "errors",
    "export",
    "nn",
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
    )
    from fewer.estimators import (
        PAPER,
        ColumnSubset,
        ConcreteAutoencoder,
        ConcreteClassifier,
        ConcreteRegressor,
    )
    from fewer.panel import Panel
    from fewer.selection import select


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fewer' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if _HOMES[name] == f"fewer.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
