"""The benchmark cases: data, honest splits, scaling fitted on training rows only."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewer.datasets import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # for paper/, which lies beside benchmarks/
from paper.case import make_case

__all__ = ["LAB_TARGETS", "NAMES", "Case", "lab_case", "load", "load_case", "make_case"]

NAMES = ("mnist", "fashion", "isolet", "coil20", "mice", "har", "tcga", "digits")
# data, k and the test error to reach on the splits and scaling of the lab notes
LAB_TARGETS = {("mnist", 50): 0.01750, ("isolet", 50): 0.01230, ("mice", 10): 0.00548}


@dataclass(frozen=True)
class Case:
    """Rows to train on and to test on, in the same units."""

    name: str
    train: np.ndarray
    test: np.ndarray
    split: str
    groups: np.ndarray | None = None  # of the training rows: mouse, patient, subject, speakers


def load_case(name: str) -> Case:
    """MNIST and Fashion / 255, COIL / 255, digits / 16; others min-max by the training rows."""
    case = make_case(load(name))
    return Case(name, case.fit, case.test, case.split.description, case.groups)


def lab_case(name: str) -> Case:
    """The lab notes' own splits and scaling, which saw the test rows."""
    if name == "mnist":
        return load_case(name)
    X = load(name).X.astype(np.float64)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    X = (X - X.min(axis=0)) / np.ptp(X, axis=0)
    order = np.random.default_rng(0).permutation(len(X))
    cut = round(0.8 * len(X))
    return Case(name, X[order[:cut]], X[order[cut:]], "as in the lab notes")
