"""The command line: a thin shell over the library."""


def main() -> None:
    """Entry point of the ``fewer`` command."""
