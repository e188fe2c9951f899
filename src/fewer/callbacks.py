"""Callbacks for ``on_epoch=`` of the concrete estimators.

Any function of a dict works. It is called with each new row of ``history_`` and may return True
to stop training.
"""

import os
from pathlib import Path
from typing import Any, Self

from fewer._optional import import_optional

__all__ = ["TensorBoard"]

SCALARS = ("temperature", "loss", "val_loss", "mean_max_probability", "distinct")


class TensorBoard:
    """Write temperature, losses, mean max probability and distinct features for TensorBoard.

    Each start and try of a fit is a separate run, ``run-1``, ``run-2``, ... in the folder;
    existing runs are kept. Needs ``pip install 'fewer[tensorboard]'``; to see the curves, run
    ``tensorboard --logdir folder``.

    Parameters
    ----------
    folder : path
        Where to write; created after the first epoch.

    Examples
    --------
    >>> import tempfile
    >>> import fewer
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_digits
    >>> folder = tempfile.mkdtemp()
    >>> with fewer.callbacks.TensorBoard(folder) as board:
    ...     model = fewer.ConcreteAutoencoder(k=5, random_state=0, on_epoch=board)
    ...     _ = model.fit(load_digits().data)
    >>> [run.name for run in Path(folder).iterdir()]
    ['run-1']
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = folder
        self._writer: Any = None
        self._last = 0  # epoch of the row before

    def __call__(self, row: dict[str, Any]) -> None:
        """Write one row of history."""
        if self._writer is None or row["epoch"] <= self._last:  # another start or try
            self.close()
            self._writer = self._new_run()
        for name in SCALARS:
            if row.get(name) is not None:
                self._writer.add_scalar(name, row[name], row["epoch"])
        self._writer.flush()  # for live curves, and because the end of a fit is not announced
        self._last = row["epoch"]

    def close(self) -> None:
        """Close the file; a later row starts a new run."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self._last = None, 0

    def _new_run(self) -> Any:
        import_optional("tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (it needs tensorboard)

        number = 1
        while True:
            run = Path(self.folder) / f"run-{number}"
            try:
                run.mkdir(parents=True)
                return SummaryWriter(str(run))
            except FileExistsError:  # written before, or at this moment by another process
                number += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # scikit-learn copies estimators with their options; an open file cannot be copied
        return {"folder": self.folder, "_writer": None, "_last": 0}

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"
