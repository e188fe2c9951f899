"""The ``fewer`` command; its subcommands share ``_options``, ``_output`` and ``_parsing``."""

from fewer.cli._app import app, main

__all__ = ["app", "main"]
