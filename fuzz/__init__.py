"""Fuzzing of everything that reads a file: `make fuzz`, or ``python -m fuzz --help``."""
