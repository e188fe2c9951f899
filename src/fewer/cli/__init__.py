"""The ``fewer`` command, one file per subcommand; what they share is in the files beside them.

Nothing heavy is imported before a command runs, so that ``fewer --help`` answers at once.
"""

from fewer.cli._app import app, main

__all__ = ["app", "main"]
