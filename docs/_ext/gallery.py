"""Order and look of the example gallery."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

ORDER = [
    "plot_quick_start.py",
    "plot_choose_k.py",
    "plot_nonlinear.py",
    "plot_baselines.py",
    "plot_costs.py",
    "plot_missing.py",
    "plot_target.py",
    "plot_pipeline.py",
    "plot_own_network.py",
    "plot_report.py",
    "plot_single_cell.py",
    "plot_gene_panel.py",
]

LOOK = {
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#777777"]),
    "font.size": 10,
}


def place(name: str) -> tuple[int, str]:
    """Where an example stands in the gallery; those not listed come last, by name."""
    file = Path(name).name
    return (ORDER.index(file) if file in ORDER else len(ORDER), file)


def reset(gallery_conf: dict[str, Any], fname: str) -> None:
    """Every example starts from the same look, on one thread."""
    import torch  # noqa: PLC0415

    mpl.rcdefaults()
    mpl.use("agg")
    mpl.rcParams.update(LOOK)
    torch.set_num_threads(1)
