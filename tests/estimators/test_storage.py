"""Saving and loading: the same outputs, no pickle, nothing lost."""

import json
import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fewer import ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor, __version__
from fewer.errors import FileFormatError, InputError, NotFittedError

QUICK = {
    "epochs": 20,
    "tries": 1,
    "stop_probability": 0.2,
    "refit_epochs": 5,
    "random_state": 0,
    "device": "cpu",
}
X, Y = load_digits(return_X_y=True)


def bare_network(k, out):
    return torch.nn.Sequential(torch.nn.Linear(k, 9), torch.nn.Tanh(), torch.nn.Linear(9, out))


@pytest.mark.parametrize(
    ("model", "target", "method"),
    [
        (ConcreteAutoencoder(k=6, **QUICK), None, "reconstruct"),
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
    assert (meta["format"], meta["version"], meta["fewer"]) == ("fewer-estimator", 1, __version__)


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


def test_functions_are_handed_in_again(tmp_path):
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
    meta_file.write_text(text.replace('"version": 1', '"version": 99'))
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


def test_it_pickles_for_those_who_want_that():
    model = ConcreteClassifier(k=3, **QUICK).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
