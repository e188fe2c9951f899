"""Small data whose best features are known."""

import numpy as np


def planted_clusters(n_clusters=3, informative=4, noise=12, per_cluster=40, seed=0):
    """Rows in far clusters, which the first columns tell apart; the others are noise, as wide."""
    rng = np.random.default_rng(seed)
    centres = rng.choice([-1.0, 1.0], size=(n_clusters, informative))
    while len(np.unique(centres, axis=0)) < n_clusters or (centres.std(axis=0) == 0).any():
        centres = rng.choice([-1.0, 1.0], size=(n_clusters, informative))
    label = np.repeat(np.arange(n_clusters), per_cluster)
    told = centres[label] + 0.05 * rng.normal(size=(len(label), informative))
    return np.hstack([told, 0.5 * rng.normal(size=(len(label), noise))]), label


def blocks_of_copies(sizes=(6, 4, 3), n=200, seed=0):
    """Independent signals of falling variance, each copied into a block of columns, up to sign."""
    rng = np.random.default_rng(seed)
    block = np.repeat(np.arange(len(sizes)), sizes)
    signals = rng.normal(size=(n, len(sizes))) * np.arange(len(sizes), 0, -1)
    signs = rng.choice([-1.0, 1.0], size=len(block))
    return signals[:, block] * signs + 1e-3 * rng.normal(size=(n, len(block))), block
