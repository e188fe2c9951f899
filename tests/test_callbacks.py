"""What a user can hook into training: a plain function, and TensorBoard."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from fewer import ConcreteAutoencoder
from fewer.callbacks import SCALARS, TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")

SOLVERS = {
    "gradient": {"solver": "gradient", "epochs": 20, "tries": 1},
    "closed form": {"solver": "closed_form"},
    "random features": {
        "solver": "closed_form",
        "decoder": (8,),
        "refit_epochs": 3,
        "refine": None,
    },
}


def model(solver, **options):
    options = {"k": 4, "random_state": 0, "device": "cpu"} | SOLVERS[solver] | options
    return ConcreteAutoencoder(**options)


@pytest.mark.parametrize("solver", SOLVERS)
def test_returning_true_stops_training_with_a_complete_model(digits, solver):
    train, test = digits[0][:400], digits[1]
    seen = []

    def stop(row):
        seen.append(row)
        return len(seen) == 3

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # stopping on purpose is nothing to warn of
        fitted = model(solver, on_epoch=stop, n_init=1 if "random" in solver else 2).fit(train)
    assert len(seen) == 3
    assert [row["epoch"] for row in fitted.history_] == [row["epoch"] for row in seen]
    assert len(set(fitted.columns_)) == 4
    assert not fitted.converged_
    assert np.isfinite(fitted.score(test))


@pytest.mark.parametrize("solver", SOLVERS)
def test_other_return_values_change_nothing(digits, solver):
    rows = digits[0][:300]
    quiet = model(solver, epochs=40).fit(rows)
    loud = model(solver, epochs=40, on_epoch=lambda row: len(str(row))).fit(rows)
    np.testing.assert_array_equal(quiet.columns_, loud.columns_)
    assert len(quiet.history_) == len(loud.history_)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_error_in_the_callback_reaches_the_user(digits, solver):
    def fail(row):
        raise KeyError("mine")

    unfitted = model(solver, on_epoch=fail)
    with pytest.raises(KeyError, match="mine"):
        unfitted.fit(digits[0][:300])
    assert not hasattr(unfitted, "columns_")
    assert unfitted.set_params(on_epoch=None, epochs=30).fit(digits[0][:300]).columns_.size == 4


def test_an_estimator_with_a_callback_can_be_cloned_and_saved(digits, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    board = TensorBoard(tmp_path / "curves")
    before = model("closed form", epochs=30, on_epoch=board)
    after = clone(before)
    assert after.get_params()["on_epoch"].folder == tmp_path / "curves"
    before.fit(digits[0][:200]).save(tmp_path / "model")
    assert ConcreteAutoencoder.load(tmp_path / "model").on_epoch is None
    board.close()


def scalars(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


@pytest.mark.parametrize("solver", ["gradient", "closed form"])
def test_tensorboard_reads_what_was_written(digits, tmp_path, solver):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    with TensorBoard(tmp_path) as board:
        fitted = model(solver, on_epoch=board, n_init=1, tries=1, stop_probability=0.05)
        fitted.fit(digits[0][:400])
        clone(fitted).fit(digits[0][:400])  # a copy writes a run of its own
    found = scalars(tmp_path / "run-1")
    assert set(found) == {name for name in SCALARS if fitted.history_[0][name] is not None}
    for name, points in found.items():
        assert [step for step, _ in points] == [row["epoch"] for row in fitted.history_]
        values = [row[name] for row in fitted.history_]
        np.testing.assert_allclose([value for _, value in points], values, rtol=1e-6)
    assert scalars(tmp_path / "run-2") == found
    assert len(list(tmp_path.iterdir())) == 2


def test_each_try_is_a_run(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    board = TensorBoard(tmp_path)
    for epoch in (1, 2, 1, 2, 3):
        board({"epoch": epoch, "loss": float(epoch), "val_loss": None})
    board.close()
    lengths = [len(scalars(tmp_path / run)["loss"]) for run in ("run-1", "run-2")]
    assert lengths == [2, 3]
    # an open file cannot travel to another process; the folder can
    board({"epoch": 1, "loss": 1.0})
    copied = pickle.loads(pickle.dumps(board))
    assert str(copied) == f"TensorBoard({str(tmp_path)!r})"
    board.close()
