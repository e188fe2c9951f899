"""A panel as a small HTTP service, for programs that do not run Python: ``fewer serve panel/``."""

from fewer.service.app import Limits, create_app, serve

__all__ = ["Limits", "create_app", "serve"]
