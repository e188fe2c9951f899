"""Every table and figure of the paper, by one command: ``fewer reproduce NAME``."""

from fewer.paper.reproduce import EXPERIMENTS, Finished, reproduce

__all__ = ["EXPERIMENTS", "Finished", "reproduce"]
