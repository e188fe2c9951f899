"""Measure fewer features, reconstruct the rest."""

__version__ = "0.1.0"
