"""Everything that fewer raises or warns about, drawn once.

FewerError
├── InputError          (ValueError)  a value given to us cannot be used
│   └── TypeInputError  (TypeError)   a value of the wrong kind
├── NotFittedError      (sklearn's)   used before fit
├── FileFormatError     (ValueError)  a file or folder is damaged, foreign or from a newer version
├── MissingExtraError   (ImportError) a library is needed that is not installed
└── ProcessError        (RuntimeError) one of several processes ended or cannot be reached

FewerWarning (UserWarning)
└── NotConvergedWarning (sklearn's ConvergenceWarning)
"""

import sys
import warnings

from sklearn.exceptions import ConvergenceWarning
from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

__all__ = [
    "FewerError",
    "FewerWarning",
    "FileFormatError",
    "InputError",
    "MissingExtraError",
    "NotConvergedWarning",
    "NotFittedError",
    "ProcessError",
    "TypeInputError",
    "warn",
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
    """A file or folder is damaged, not what it should be, or written by a newer version."""


class MissingExtraError(FewerError, ImportError):
    """A library that only some users need is not installed; the message says which extra has it."""


class ProcessError(FewerError, RuntimeError):
    """One of the processes of a job ended, or cannot be reached; the others end too."""


class FewerWarning(UserWarning):
    """Base of every warning that fewer gives."""


class NotConvergedWarning(FewerWarning, ConvergenceWarning):
    """The selector has not settled on single features; the message says what to change."""


def warn(message: str, category: type[FewerWarning] = FewerWarning) -> None:
    """Warn at the line of the user's that led here, whatever lies between.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("careful")
    >>> str(caught[0].message)
    'careful'
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fewer."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
