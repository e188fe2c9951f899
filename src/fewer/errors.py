"""Everything that fewer raises or warns about, drawn once.

FewerError
├── InputError          (ValueError)  a value given to us cannot be used
│   └── TypeInputError  (TypeError)   a value of the wrong kind
├── NotFittedError      (sklearn's)   used before fit
└── FileFormatError     (ValueError)  a saved folder is damaged, foreign or from a newer version

FewerWarning (UserWarning)
└── NotConvergedWarning (sklearn's ConvergenceWarning)
"""

from sklearn.exceptions import ConvergenceWarning
from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

__all__ = [
    "FewerError",
    "FewerWarning",
    "FileFormatError",
    "InputError",
    "NotConvergedWarning",
    "NotFittedError",
    "TypeInputError",
]


class FewerError(Exception):
    """Base of every error that fewer raises on purpose."""


class InputError(FewerError, ValueError):
    """A value given to fewer cannot be used; the message names it and the remedy."""


class TypeInputError(InputError, TypeError):
    """A value of the wrong kind, such as ``k="ten"``."""


class NotFittedError(FewerError, _SklearnNotFittedError):
    """A method that needs a fitted estimator was called before ``fit``."""


class FileFormatError(FewerError, ValueError):
    """A saved folder is incomplete, not ours, or written by a newer version."""


class FewerWarning(UserWarning):
    """Base of every warning that fewer gives."""


class NotConvergedWarning(FewerWarning, ConvergenceWarning):
    """The selector has not settled on single features; the message says what to change."""
