"""The ``fewer`` command, one file per subcommand; what they share is in ``_options``,
``_output`` and ``_parsing``."""

from fewer.cli._app import app, main

__all__ = ["app", "main"]
