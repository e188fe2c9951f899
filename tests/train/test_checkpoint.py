"""Unfinished fits on disk: what goes on from them ends as if nothing had happened."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import fewer
from fewer import ConcreteAutoencoder
from fewer.errors import FileFormatError, InputError
from fewer.train import Checkpoint
from fewer.train.checkpoint import stored_seed

pytestmark = pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")

OPTIONS = {"k": 5, "solver": "gradient", "epochs": 12, "tries": 2, "device": "cpu"}


class Interrupted(Exception):
    """Stands for whatever ends a fit."""


def interrupted_at(epoch, attempt=1, how=None):
    def look(row):
        if (row["try"], row["epoch"]) == (attempt, epoch):
            if how is not None:
                how()
            raise Interrupted

    return look


def losses(model):
    return [(row["try"], row["epoch"], row["loss"], row["val_loss"]) for row in model.history_]


@pytest.mark.parametrize(
    ("options", "epoch", "attempt"),
    [
        ({}, 7, 1),
        ({}, 5, 2),
        ({"decoder": (8,), "dropout": 0.2, "norm": "batch", "patience": 3, "refine": None}, 7, 1),
        ({"draw": "row", "epochs": 4}, 3, 1),
        ({"n_init": 2, "tries": 1, "learning_rate_decay": 0.9}, 6, 1),
        ({"logits": "indirect", "embedding": 6, "anneal": "epoch"}, 6, 1),
        ({"decoder": (4,), "exclude": range(8, 64), "tries": 1, "epochs": 4}, 3, 1),  # with swaps
    ],
)
def test_a_resumed_fit_equals_an_uninterrupted_one(tmp_path, digits, options, epoch, attempt):
    X = digits[0][:300]
    options = OPTIONS | {"refit_epochs": 3, "random_state": 0} | options
    whole = ConcreteAutoencoder(**options).fit(X)
    kept = Checkpoint(tmp_path / "kept", every=0)
    stops = interrupted_at(epoch, attempt)
    with pytest.raises(Interrupted):
        ConcreteAutoencoder(**options, checkpoint=kept, on_epoch=stops).fit(X)
    assert (tmp_path / "kept" / "training.safetensors").is_file()
    torch.manual_seed(99)  # what a user does in between must not matter
    resumed = ConcreteAutoencoder(**options, checkpoint=kept).fit(X)
    assert losses(resumed) == losses(whole)
    assert resumed.refit_history_ == whole.refit_history_
    assert resumed.columns_.tolist() == whole.columns_.tolist()
    np.testing.assert_array_equal(resumed.reconstruct(X), whole.reconstruct(X))
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("stalls", [False, True])
def test_decoder_training_resumes(tmp_path, digits, monkeypatch, stalls):
    X = digits[0][:300]
    options = OPTIONS | {"decoder": (8,), "refit_epochs": 20, "epochs": 3, "random_state": 0}
    options |= {"refine": None}  # swaps are not trained, and take most of the time
    if stalls:  # the loss hardly moves at so high a rate, and the end is brought forward
        options |= {"patience": 2, "learning_rate": 0.5, "refit_epochs": 30}
    whole = ConcreteAutoencoder(**options).fit(X)
    hurried = [row["epoch"] for row in whole.refit_history_ if row["trained"] < row["epoch"]]
    assert (len(hurried) > 1) == stalls
    last = hurried[0] if stalls else 8
    kept = Checkpoint(tmp_path / "kept", every=0)
    calls = []
    save = Checkpoint.save

    def until(self, name, notes, tensors):
        save(self, name, notes, tensors)
        calls.append(name)
        if calls.count("decoder") == last:
            raise Interrupted

    monkeypatch.setattr(Checkpoint, "save", until)
    with pytest.raises(Interrupted):
        ConcreteAutoencoder(**options, checkpoint=kept).fit(X)
    monkeypatch.setattr(Checkpoint, "save", save)
    seen = []
    resumed = ConcreteAutoencoder(**options, checkpoint=kept, on_epoch=seen.append).fit(X)
    assert not seen  # the selector is not trained again
    assert resumed.refit_history_ == whole.refit_history_
    np.testing.assert_array_equal(resumed.reconstruct(X), whole.reconstruct(X))


KILLED = """
import os, signal, sys, numpy as np, fewer
from fewer.train import Checkpoint
folder = sys.argv[1]
def look(row):
    if row["epoch"] == 6:
        os.kill(os.getpid(), signal.SIGKILL)
fewer.ConcreteAutoencoder(
    5, solver="gradient", epochs=12, tries=1, device="cpu",
    checkpoint=Checkpoint(f"{folder}/kept", every=0), on_epoch=look,
).fit(f"{folder}/rows.npy")
"""


def test_a_process_that_is_killed_for_real(tmp_path, digits):
    np.save(tmp_path / "rows.npy", digits[0][:300])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        check=False,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == -signal.SIGKILL
    seed = stored_seed(tmp_path / "kept")  # it had none of its own
    assert seed is not None
    first = []
    resumed = ConcreteAutoencoder(
        **OPTIONS | {"tries": 1}, checkpoint=tmp_path / "kept", on_epoch=first.append
    ).fit(tmp_path / "rows.npy")
    assert first[0]["epoch"] == 6  # the state of five epochs was there
    assert [row["epoch"] for row in resumed.history_[:12]] == list(range(1, 13))


def test_ctrl_c_leaves_what_was_done(tmp_path, digits):
    X = digits[0][:300]
    kept = Checkpoint(tmp_path / "kept", every=0)
    stops = interrupted_at(4, how=lambda: signal.raise_signal(signal.SIGINT))
    # shells let what they start in the background ignore Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ConcreteAutoencoder(**OPTIONS, checkpoint=kept, on_epoch=stops, random_state=3).fit(X)
    finally:
        signal.signal(signal.SIGINT, before)
    whole = ConcreteAutoencoder(**OPTIONS, random_state=3).fit(X)
    resumed = ConcreteAutoencoder(**OPTIONS, checkpoint=kept, random_state=3).fit(X)
    assert losses(resumed) == losses(whole)


def test_a_selection_resumes(tmp_path, digits):
    X = digits[0][:120, 16:40]
    options = {"validation": 0.3, "random_state": 0, "device": "cpu", "scale": "none"}
    options |= {"strategies": ["search", "gradient"]}
    whole = fewer.select(X, 3, **options)
    told = []

    def tell(text, share):
        told.append(text)
        if text.startswith("gradient: held-out"):
            raise Interrupted

    kept = tmp_path / "kept"
    with pytest.raises(Interrupted):
        fewer.select(X, 3, **options, progress=tell, checkpoint=kept)
    assert json.loads((kept / "fit.json").read_text())["fit"]["k"] == 3
    chosen = Checkpoint(kept).load("choices")[0]
    assert {name.split(",")[0] for name in chosen} == {"greedy", "search", "gradient"}
    panel = fewer.select(X, 3, **options, checkpoint=kept)
    assert panel.indices.tolist() == whole.indices.tolist()
    assert panel.held_out == whole.held_out
    assert not kept.exists()


def test_a_checkpoint_of_another_fit_is_refused(tmp_path, digits):
    X = digits[0][:200]
    kept = Checkpoint(tmp_path / "kept", every=0)
    options = OPTIONS | {"random_state": 0}
    with pytest.raises(Interrupted):
        ConcreteAutoencoder(**options, checkpoint=kept, on_epoch=interrupted_at(3)).fit(X)
    with pytest.raises(InputError, match=r"unfinished fit with k=5, not 6: continue that fit"):
        ConcreteAutoencoder(**options | {"k": 6}, checkpoint=kept).fit(X)
    with pytest.raises(InputError, match=r"rows=200, not 190"):
        ConcreteAutoencoder(**options, checkpoint=kept).fit(X[:190])
    with pytest.raises(InputError, match="spread="):
        ConcreteAutoencoder(**options, checkpoint=kept).fit(X * 2)
    with pytest.raises(InputError, match="seed="):
        ConcreteAutoencoder(**options | {"random_state": 1}, checkpoint=kept).fit(X)


def test_folders_that_cannot_be_used(tmp_path, digits):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("all my work")
    fit = ConcreteAutoencoder(**OPTIONS, checkpoint=tmp_path / "full").fit
    with pytest.raises(InputError, match="contains other files"):
        fit(digits[0][:200])
    assert (tmp_path / "full" / "thesis.tex").read_text() == "all my work"
    with pytest.raises(InputError, match="checkpoint=5 must be the path of a folder"):
        ConcreteAutoencoder(**OPTIONS, checkpoint=5).fit(digits[0][:200])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        ConcreteAutoencoder(**OPTIONS, checkpoint=tmp_path / "file" / "x").fit(digits[0][:200])


def test_two_runs_in_one_folder(tmp_path, digits):
    X, refused = digits[0][:100, 20:40], []

    def another(*progress):
        if (tmp_path / "kept" / "fit.json").exists():
            with pytest.raises(InputError, match="in use by another run; wait") as error:
                fit(4)
            refused.append(error)
            raise Interrupted

    def fit(k, on_epoch=None):
        options = OPTIONS | {"k": k, "checkpoint": tmp_path / "kept", "on_epoch": on_epoch}
        return ConcreteAutoencoder(**options).fit(X)

    quick = {"strategies": ["search"], "validation": 0.2, "checkpoint": tmp_path / "kept"}
    for run in (lambda: fit(4, another), lambda: fewer.select(X, 4, progress=another, **quick)):
        with pytest.raises(Interrupted):
            run()
        with pytest.raises(InputError, match="holds an unfinished fit"):
            fit(3)  # not in use any more
        shutil.rmtree(tmp_path / "kept")
    assert len(refused) == 2


@pytest.mark.parametrize("name", ["fit.json", "training.safetensors"])
def test_damaged_checkpoints(tmp_path, digits, name):
    X = digits[0][:200]
    kept = Checkpoint(tmp_path / "kept", every=0)
    options = OPTIONS | {"random_state": 0}
    with pytest.raises(Interrupted):
        ConcreteAutoencoder(**options, checkpoint=kept, on_epoch=interrupted_at(3)).fit(X)
    path = tmp_path / "kept" / name
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FileFormatError, match="is damaged"):
        ConcreteAutoencoder(**options, checkpoint=kept).fit(X)


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    kept = Checkpoint(tmp_path / "kept")
    kept.begin({"k": 1})
    kept.save("training", {"epoch": 1}, {"w": torch.ones(3)})

    def full(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr("fewer.train.checkpoint.save_file", full)
    with pytest.raises(InputError, match="no space"):
        kept.save("training", {"epoch": 2}, {"w": torch.zeros(3)})
    notes, tensors = kept.load("training")
    assert notes == {"epoch": 1}
    assert tensors["w"].tolist() == [1, 1, 1]
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "fit.json",
        "training.safetensors",
    ]


def test_a_saved_estimator_knows_nothing_of_checkpoints(tmp_path, digits):
    model = ConcreteAutoencoder(**OPTIONS, checkpoint=tmp_path / "kept").fit(digits[0][:200])
    model.save(tmp_path / "model")
    assert ConcreteAutoencoder.load(tmp_path / "model").checkpoint is None
