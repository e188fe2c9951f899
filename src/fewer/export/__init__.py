"""Panels for other programs: an ONNX graph, a description."""

from typing import Any

from fewer.export.onnx_graph import export_onnx
from fewer.panel import Panel

__all__ = ["describe", "export_onnx"]


def describe(panel: Panel) -> dict[str, Any]:
    """What a panel measures and how well it does, as JSON can hold it.

    Parameters
    ----------
    panel : Panel
        From `fewer.select` or `fewer.Panel.load`.

    Examples
    --------
    >>> import fewer
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris(as_frame=True).data
    >>> panel = fewer.select(X, 2, strategies=["search"], random_state=0)
    >>> about = describe(panel)
    >>> about["k"], about["d"], about["features"]
    (2, 4, ['sepal width (cm)', 'petal length (cm)'])
    """
    known = panel.evidence
    names: list[Any] = panel.names or list(range(panel.d))
    about: dict[str, Any] = {
        "format": "fewer-description",
        "k": panel.k,
        "d": panel.d,
        "features": panel.features,
        "indices": panel.indices.tolist(),
        "all_features": names,
        "held_out": float(panel.held_out),
        "standard_error": panel.held_out.standard_error,
        "errors": panel.held_out.errors.tolist(),
        "leaderboard": [
            {name: row[name] for name in ("strategy", "error", "seconds")}
            for row in panel.leaderboard
        ],
        "settings": panel.settings,
    }
    if panel.target is not None:
        about["target"] = {
            "name": panel.target.name,
            "kind": panel.target.kind.name,
            "metric": panel.target.kind.metric,
            "held_out": panel.target.held_out,
        }
        if panel.target.parts:
            about["target"]["parts"] = [
                {"name": part.name, "kind": part.kind.name, "held_out": part.held_out}
                for part in panel.target.parts
            ]
    if known is not None:
        about["order"] = [names[j] for j in known.order]
        about["gains"] = known.gains.tolist()
        about["explained_variance"] = known.explained
        about["standard_errors"] = known.standard_errors
    return about
