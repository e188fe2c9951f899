"""No split lets a row, or a mouse, patient, subject or speaker, be on both sides."""

from functools import cache

import numpy as np
import pytest

from fewer.datasets import load
from fewer.errors import InputError

loaded = cache(load)  # reading takes longer than splitting


@pytest.mark.parametrize("name", ["mnist", "isolet", "coil20", "mice", "har", "tcga", "digits"])
@pytest.mark.parametrize("protocol", ["clean", "paper"])
@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_disjoint(data_folder, name, protocol, seed):
    split = loaded(name).split(protocol, seed)
    parts = [split.train, split.validation, split.test]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all(len(part) > 0 for part in parts)
    assert sorted(split.fit) == sorted(np.concatenate(parts[:2]))


@pytest.mark.parametrize("name", ["isolet", "mice", "har", "tcga", "luad"])
def test_clean_splits_keep_groups_together(data_folder, name):
    data = loaded(name)
    tests = []
    for seed in range(3):
        split = data.split("clean", seed)
        sides = [set(data.groups[rows]) for rows in (split.train, split.validation, split.test)]
        assert not sides[0] & sides[1]
        assert not sides[0] & sides[2]
        assert not sides[1] & sides[2]
        tests.append(frozenset(sides[2]))
    assert len(set(tests)) == 3  # each seed tests on others


def test_the_papers_split_of_mice_puts_a_mouse_on_both_sides(data_folder):
    """Why there is a clean protocol at all."""
    data = loaded("mice")
    split = data.split("paper", 0)
    shared = set(data.groups[split.fit]) & set(data.groups[split.test])
    assert len(shared) > 60


@pytest.mark.parametrize("name", ["isolet", "har"])
def test_the_first_clean_split_is_the_official_one(data_folder, name):
    data = loaded(name)
    assert sorted(data.split().test) == np.flatnonzero(data.official).tolist()


@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_only_the_official_test_images_are_used(data_folder, name):
    data = loaded(name)
    split = data.split(seed=3)
    assert data.official[split.fit].all()
    assert data.official[split.test].all()
    assert (len(split.fit), len(split.test)) == (6000, 4000)


def test_seeds_fix_and_change_splits():
    data = loaded("digits")
    assert data.split(seed=1).test.tolist() == data.split(seed=1).test.tolist()
    assert data.split(seed=1).test.tolist() != data.split(seed=2).test.tolist()


def test_unknown_values_are_named():
    data = loaded("digits")
    with pytest.raises(InputError, match=r"protocol='fair' is not valid; use 'clean' or 'paper'"):
        data.split("fair")
    with pytest.raises(InputError, match=r"seed=-1 must be a whole number of at least 0"):
        data.split(seed=-1)
