"""Whether a GPU gives what the CPU gives on the benchmark sets.

    python benchmarks/devices.py [SET ...] [--device cuda]

Per set: the largest difference of two covariances, in units of the features' standard deviations;
the features that both linear panels have; and the mean squared errors on test rows, those of the
GPU divided by those of the CPU, for linear panels, for networks, and for a network's decoder of the
same panel. Prints one line of JSON per set.
"""

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
import torch

import fewer
from cases import load_case
from fewer.data import covariance
from fewer.data.source import array_source

SIZES = {"mice": 10, "coil20": 20, "isolet": 30, "digits": 10}
DECODER = (64,)


def error(panel: Any, test: np.ndarray) -> float:
    found = panel.reconstruct(test[:, panel.indices])
    return float(np.square(np.asarray(found) - test).mean())


def agreement(name: str, device: str) -> dict[str, Any]:
    case, k = load_case(name), SIZES.get(name, 20)
    train, test = case.train.astype(np.float64), case.test.astype(np.float64)
    gaps = np.isnan(train).any() or np.isnan(test).any()
    if gaps:  # the same in both
        mean = np.nanmean(train, axis=0)
        train, test = (np.where(np.isnan(X), mean, X) for X in (train, test))
    matrices = [covariance(array_source(train), device=on).matrix.cpu() for on in ("cpu", device)]
    spread = matrices[0].diagonal().sqrt().clamp(min=1e-12)
    apart = ((matrices[1] - matrices[0]) / torch.outer(spread, spread)).abs().max().item()
    errors, features, seconds = {}, {}, {}
    options: dict[str, Any] = {"random_state": 0, "row_groups": case.groups, "scale": "none"}
    for on in ("cpu", device):
        begun = time.perf_counter()
        linear = fewer.select(train, k, device=on, **options)
        network = fewer.select(train, k, decoder=DECODER, device=on, **options)
        features.setdefault(on, linear.indices)
        same = features["cpu"].tolist()  # on the CPU it comes first
        fixed = fewer.select(train, k, include=same, decoder=DECODER, device=on, **options)
        errors[on] = [error(one, test) for one in (linear, network, fixed)]
        seconds[on] = round(time.perf_counter() - begun, 1)
    kinds = ("linear", "network", "decoder")
    ratios = [there / here for here, there in zip(errors["cpu"], errors[device], strict=True)]
    return {
        "set": name,
        "k": k,
        "covariance": apart,
        "common": len(set(features["cpu"].tolist()) & set(features[device].tolist())),
        "errors of the CPU": dict(zip(kinds, errors["cpu"], strict=True)),
        "GPU / CPU": {kind: round(ratio, 5) for kind, ratio in zip(kinds, ratios, strict=True)},
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("sets", nargs="*", default=list(SIZES))
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.sets:
        print(json.dumps(agreement(name, given.device)), flush=True)


if __name__ == "__main__":
    main()
