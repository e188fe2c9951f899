"""``python -m fewer`` is the command ``fewer``."""

from fewer.cli import main

if __name__ == "__main__":
    main()
