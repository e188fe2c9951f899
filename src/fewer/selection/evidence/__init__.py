"""The evidence behind a panel, computed when a report asks for it."""

from fewer.selection.evidence.gather import gather_evidence

__all__ = ["gather_evidence"]
