"""Several numbers to predict, in units of their own."""

import numpy as np
import pytest

import fewer


@pytest.mark.parametrize("decoder", ["linear", (12,)])
def test_units_of_a_target_make_no_difference(decoder):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4))
    y = np.c_[np.sin(2 * X[:, 0]) + X[:, 1], X[:, 2] ** 2 - X[:, 1]]
    y += 0.05 * rng.normal(size=y.shape)
    options = {
        "decoder": decoder,
        "strategies": ["search"],
        "validation": 0.2,
        "random_state": 0,
        "device": "cpu",
        "include": [0, 1, 2],
    }
    plain = fewer.select(X, 3, target=y, **options)
    units = np.array([1e-4, 1e4])
    odd = fewer.select(X, 3, target=y * units, **options)
    measured = X[:50, :3]
    np.testing.assert_allclose(
        odd.predict(measured) / units, plain.predict(measured), rtol=1e-2, atol=1e-2
    )
    assert odd.target.held_out == pytest.approx(plain.target.held_out, abs=0.01)
    if decoder != "linear":
        assert plain.target.held_out > 0.6
