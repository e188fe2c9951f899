"""Saving and loading: the same outputs, no pickle, nothing lost."""

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.datasets import load_digits

from fewer import (
    ColumnSubset,
    ConcreteAutoencoder,
    ConcreteClassifier,
    ConcreteRegressor,
    Panel,
    __version__,
    _files,
    select,
)
from fewer.errors import FileFormatError, InputError, NotFittedError

# short training does not settle, and need not to be saved
pytestmark = pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")

QUICK = {
    "epochs": 20,
    "tries": 1,
    "stop_probability": 0.2,
    "refit_epochs": 5,
    "refine": None,
    "random_state": 0,
    "device": "cpu",
}
X, Y = load_digits(return_X_y=True)
SEARCH = {"k": 3, "stall": 0, "random_state": 0, "device": "cpu"}
FEW = X[:200, 10:20]


@pytest.fixture
def saved(tmp_path):
    """Folder of a saved ColumnSubset, and the JSON in it."""
    ColumnSubset(**SEARCH).fit(FEW).save(tmp_path / "m")
    return tmp_path / "m", json.loads((tmp_path / "m" / "estimator.json").read_text())


def bare_network(k, out):
    return torch.nn.Sequential(torch.nn.Linear(k, 9), torch.nn.Tanh(), torch.nn.Linear(9, out))


@pytest.mark.parametrize(
    ("model", "target", "method"),
    [
        (ConcreteAutoencoder(k=6, **QUICK | {"refine": "swaps"}), None, "reconstruct"),
        (ConcreteAutoencoder(k=6, decoder=(12, 8), norm="batch", **QUICK), None, "reconstruct"),
        (ConcreteAutoencoder(k=6, loss="poisson", **QUICK), None, "reconstruct"),
        (ConcreteAutoencoder(k=6, decoder=7, refit="none", **QUICK), None, "reconstruct"),
        (ConcreteClassifier(k=6, **QUICK), Y, "predict_proba"),
        (ConcreteClassifier(k=6, **QUICK), Y.astype(str), "predict"),
        (ConcreteRegressor(k=6, **QUICK), Y * 1.0, "predict"),
        (ConcreteRegressor(k=6, **QUICK), np.stack([Y, -Y], 1), "predict"),
    ],
)
def test_loading_gives_identical_outputs(tmp_path, model, target, method):
    model.fit(X, target)
    model.save(tmp_path / "deep" / "model")
    again = type(model).load(tmp_path / "deep" / "model")
    np.testing.assert_array_equal(getattr(again, method)(X), getattr(model, method)(X))
    measured = model.transform(X)
    np.testing.assert_array_equal(again.transform(X), measured)
    np.testing.assert_array_equal(
        again.inverse_transform(measured), model.inverse_transform(measured)
    )
    assert again.get_params() == model.get_params()
    assert again.history_ == model.history_
    assert again.feature_groups() == model.feature_groups()
    assert again.score(X, target) == model.score(X, target)


def test_a_folder_holds_json_and_safetensors_only(tmp_path):
    ConcreteAutoencoder(k=3, **QUICK).fit(X).save(tmp_path / "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    files = sorted(p.name for p in (tmp_path / "m").iterdir())
    assert files == ["estimator.json", "tensors.safetensors"]
    meta = json.loads((tmp_path / "m" / "estimator.json").read_text())
    assert (meta["format"], meta["version"], meta["fewer"]) == ("fewer-estimator", 2, __version__)


def test_saving_again_replaces_but_never_a_foreign_folder(tmp_path):
    first = ConcreteAutoencoder(k=3, **QUICK).fit(X)
    second = ConcreteAutoencoder(k=4, **QUICK).fit(X)
    first.save(tmp_path / "m")
    second.save(tmp_path / "m")
    assert ConcreteAutoencoder.load(tmp_path / "m").k == 4
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a saved estimator; choose another path"):
        first.save(tmp_path / "notes")
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"


def test_files_that_a_user_added_are_never_replaced(saved):
    folder, _ = saved
    (folder / "figure.png").write_bytes(b"picture")
    with pytest.raises(InputError, match=r"holds more than a saved estimator: figure\.png; saving"):
        ColumnSubset(**SEARCH).fit(FEW).save(folder)
    assert (folder / "figure.png").read_bytes() == b"picture"
    assert ColumnSubset.load(folder).k == 3


@pytest.mark.parametrize("broken", ["once", "always"])
def test_the_old_folder_survives_when_the_new_one_cannot_take_its_place(saved, monkeypatch, broken):
    folder, _ = saved
    rename, failed = Path.rename, []

    def failing(self, target):
        if Path(target) == folder and (broken == "always" or not failed):
            failed.append(self)
            raise OSError("no room")
        return rename(self, target)

    monkeypatch.setattr(_files, "_exchange", lambda a, b: False)  # as on other systems
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InputError, match=r"cannot be written .no room.; make room"):
        ColumnSubset(**{**SEARCH, "k": 4}).fit(FEW).save(folder)
    if broken == "once":
        assert [item.name for item in folder.parent.iterdir()] == ["m"]
    else:  # not even the old one can go back: it stays beside, and the next save puts it back
        monkeypatch.undo()
        assert not folder.exists()
        _files.remove_leftovers(folder)
        assert [item.name for item in folder.parent.iterdir()] == ["m"]
    assert ColumnSubset.load(folder).k == 3


def test_nothing_but_our_own_leftovers_is_removed(tmp_path):
    kept = {".p-notes", ".p-abcdefgh", ".p-unlocked", "elsewhere"}
    for name in (*kept - {".p-abcdefgh"}, ".p-zyxwvuts"):
        (tmp_path / name).mkdir()
    for name in (".p-notes", ".p-zyxwvuts", "elsewhere"):
        (tmp_path / name / _files.LOCK).touch()
    (tmp_path / ".p-abcdefgh").symlink_to(tmp_path / "elsewhere")
    _files.remove_leftovers(tmp_path / "p")
    assert {path.name for path in tmp_path.iterdir()} == kept
    _files.remove_leftovers(tmp_path / "nowhere" / "p")


def test_a_link_to_a_folder_stays_a_link(saved):
    folder, _ = saved
    link = folder.parent / "link"
    link.symlink_to(folder)
    ColumnSubset(**{**SEARCH, "k": 4}).fit(FEW).save(link)
    assert link.is_symlink()
    assert ColumnSubset.load(folder).k == 4


def test_functions_are_passed_again(tmp_path):
    model = ConcreteAutoencoder(k=3, decoder=bare_network, **QUICK).fit(X)
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match=r"bare_network, which is not stored: pass it again"):
        ConcreteAutoencoder.load(tmp_path / "m")
    again = ConcreteAutoencoder.load(tmp_path / "m", decoder=bare_network)
    np.testing.assert_array_equal(again.reconstruct(X), model.reconstruct(X))


def test_a_loss_function_is_not_needed_to_predict(tmp_path):
    model = ConcreteAutoencoder(k=3, loss=lambda o, t: (o - t) ** 2, **QUICK).fit(X)
    model.save(tmp_path / "m")
    again = ConcreteAutoencoder.load(tmp_path / "m")
    np.testing.assert_array_equal(again.reconstruct(X), model.reconstruct(X))


def test_load_takes_nothing_but_functions_that_were_left_out(tmp_path, saved):
    with pytest.raises(
        InputError, match=r"load\(path, k=\.\.\.\).*functions can be passed, here none"
    ):
        ColumnSubset.load(saved[0], k=99)
    model = ConcreteAutoencoder(k=3, decoder=bare_network, **QUICK).fit(X)
    model.save(tmp_path / "net")
    for options in ({"decodr": bare_network}, {"decoder": bare_network, "k": 99}):
        with pytest.raises(InputError, match=r"here decoder; change others with set_params"):
            ConcreteAutoencoder.load(tmp_path / "net", **options)


class Tied(torch.nn.Module):
    """One matrix used twice."""

    def __init__(self, k, out):
        super().__init__()
        self.first = torch.nn.Linear(k, k)
        self.second = torch.nn.Linear(k, k)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(k, out)

    def forward(self, x):
        return self.last(self.second(torch.tanh(self.first(x))))


def test_tied_weights_are_saved(tmp_path):
    model = ConcreteAutoencoder(k=3, decoder=Tied, **QUICK).fit(X)
    model.save(tmp_path / "m")
    again = ConcreteAutoencoder.load(tmp_path / "m", decoder=Tied)
    np.testing.assert_array_equal(again.reconstruct(X), model.reconstruct(X))


MASK = np.arange(10) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"include": {4, 2}},
        {"include": {4: "x"}.keys()},
        {"include": pd.Series([4, 2])},
        {"exclude": pd.Index([1, 2])},
        {"exclude": range(3)},
        {"include": MASK, "exclude": ~MASK & (np.arange(10) < 3)},
        {"costs": pd.Series(np.arange(10.0)), "budget": 12},
        {"costs": pd.Series(np.arange(10.0), index=range(10)).astype("float32"), "budget": 12},
        {"costs": np.arange(10.0), "budget": np.array(12.0)},
        {"groups": [0, 0, np.nan, 1, 1, np.nan, None, 2, 2, 2]},
        {"groups": np.array([0, 0, np.nan, 1, 1, np.nan, 3, 2, 2, 2])},
        {"groups": pd.Series(list("aabbccddee"))},
        {"groups": [{0, 1}, pd.Index([2, 3])]},
        {"groups": [MASK, np.arange(10) < 3]},
        {"groups": {0: ("a", 1), 1: ("a", 1), 2: np.nan}},
        {"time_limit": float("inf")},
        {"device": torch.device("cpu")},
    ],
)
def test_every_way_to_write_a_constraint_is_saved(tmp_path, options):
    model = ColumnSubset(**{**SEARCH, **options}).fit(FEW)
    model.save(tmp_path / "m")
    again = ColumnSubset.load(tmp_path / "m")
    refitted = clone(again).fit(FEW)
    np.testing.assert_array_equal(refitted.columns_, model.columns_)
    again.save(tmp_path / "m")
    assert ColumnSubset.load(tmp_path / "m").k == 3


def test_a_mask_is_loaded_as_a_mask(tmp_path):
    ColumnSubset(include=MASK, **SEARCH).fit(FEW).save(tmp_path / "m")
    mask = ColumnSubset.load(tmp_path / "m").include
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, MASK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": None}, "its version is None"),
        ({"version": "1"}, "its version is '1'"),
        ({"class": None}, "'class' is None; it must be text"),
        ({"columns": None}, "'columns' is None; it must be a list"),
        ({"columns": [0, 1, 99]}, "'columns' must be numbers from 0 to 9"),
        ({"columns": ["a"]}, "'columns' must be numbers from 0 to 9"),
        ({"n_features_in": "ten"}, "'n_features_in' is 'ten'; it must be a whole number"),
        ({"parameters": None}, "'parameters' is None; it must be an object"),
        ({"parameters": {"k": 3, "speed": 1}}, "ColumnSubset does not know: speed; save it again"),
        ({"decoder": None}, "'decoder' is None; it must be an object"),
    ],
)
def test_a_damaged_description_is_named(saved, change, message):
    folder, meta = saved
    (folder / "estimator.json").write_text(json.dumps(meta | change))
    with pytest.raises(FileFormatError, match=message):
        ColumnSubset.load(folder)


@pytest.mark.parametrize(
    "key", ["version", "class", "columns", "n_features_in", "parameters", "decoder"]
)
def test_a_description_that_lacks_something_is_damaged(saved, key):
    folder, meta = saved
    del meta[key]
    (folder / "estimator.json").write_text(json.dumps(meta))
    with pytest.raises(FileFormatError, match=key):
        ColumnSubset.load(folder)


def test_a_panel_that_lacks_something_is_damaged(tmp_path):
    select(FEW, 3, strategies=["search"], validation=0.2, random_state=0).save(tmp_path / "p")
    whole = json.loads((tmp_path / "p" / "panel.json").read_text())
    for key in ("version", "settings", "indices", "d", "names", "held_out"):
        rest = {name: value for name, value in whole.items() if name != key}
        (tmp_path / "p" / "panel.json").write_text(json.dumps(rest))
        with pytest.raises(FileFormatError, match=key):
            Panel.load(tmp_path / "p")


def test_a_panel_of_the_first_format_still_loads(tmp_path):
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0}
    panel = select(X[:200, 10:20], 3, target=Y[:200], **options)
    panel.save(tmp_path / "p")
    words, numbers = tmp_path / "p" / "panel.json", tmp_path / "p" / "tensors.safetensors"
    old_names = {
        "created": "made",
        "explained": "shares",
        "related_correlation": "likeness",
        "represents": "stands_for",
        "reconstructed": "rebuilt",
    }
    meta = json.loads(words.read_text()) | {"version": 1}
    meta["evidence"] = {old_names.get(key, key): part for key, part in meta["evidence"].items()}
    meta["target"]["one"] = meta["target"].pop("single_output")
    words.write_text(json.dumps(meta))
    tensors = {
        name.replace(new, old): part
        for name, part in load_file(numbers).items()
        for new, old in [next((pair for pair in old_names.items() if pair[0] in name), ("", ""))]
    }
    save_file(tensors, numbers)
    assert "evidence.likeness" in tensors
    again = Panel.load(tmp_path / "p")
    assert again.evidence.explained == panel.evidence.explained
    np.testing.assert_array_equal(again.evidence.represents, panel.evidence.represents)
    measured = X[:20, 10:20][:, panel.indices]
    np.testing.assert_array_equal(again.predict(measured), panel.predict(measured))
    np.testing.assert_array_equal(again.reconstruct(measured), panel.reconstruct(measured))


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(FileFormatError, match=r"has no estimator\.json"):
        ConcreteAutoencoder.load(tmp_path / "nowhere")
    model = ConcreteAutoencoder(k=3, **QUICK).fit(X)
    model.save(tmp_path / "m")
    with pytest.raises(FileFormatError, match=r"holds a ConcreteAutoencoder; use Conc"):
        ConcreteClassifier.load(tmp_path / "m")

    meta_file, tensor_file = (
        tmp_path / "m" / name for name in ("estimator.json", "tensors.safetensors")
    )
    text, numbers = meta_file.read_text(), tensor_file.read_bytes()
    meta_file.write_text(text[: len(text) // 2])
    with pytest.raises(FileFormatError, match="is damaged"):
        ConcreteAutoencoder.load(tmp_path / "m")
    meta_file.write_text(text.replace('"version": 2', '"version": 99'))
    with pytest.raises(FileFormatError, match=r"version 99.*upgrade fewer"):
        ConcreteAutoencoder.load(tmp_path / "m")
    meta_file.write_text('{"format": "else"}')
    with pytest.raises(FileFormatError, match="not written by fewer"):
        ConcreteAutoencoder.load(tmp_path / "m")
    meta_file.write_text(text)
    tensor_file.write_bytes(numbers[: len(numbers) // 2])
    with pytest.raises(FileFormatError, match="missing or damaged"):
        ConcreteAutoencoder.load(tmp_path / "m")


def test_an_unfitted_estimator_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError, match="not fitted yet; call fit"):
        ConcreteAutoencoder().save(tmp_path / "m")


def test_it_can_be_pickled():
    model = ConcreteClassifier(k=3, **QUICK).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
