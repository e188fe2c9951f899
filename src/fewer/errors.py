"""Everything that fewer raises or warns about.

FewerError
├── InputError          (ValueError)  an invalid value
│   └── TypeInputError  (TypeError)   a value of the wrong kind
├── NotFittedError      (sklearn's)   used before fit
├── FileFormatError     (ValueError)  a file or folder is damaged, foreign or from a newer version
├── MissingExtraError   (ImportError) an optional library is not installed
└── ProcessError        (RuntimeError) one of several processes ended or cannot be reached

FewerWarning (UserWarning)
└── NotConvergedWarning (sklearn's ConvergenceWarning)
"""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
]

# the start of scikit-learn's message (the rest is cut off), and the remedy
REMEDIES = {
    r"Found array with \d+ sample\(s\).*? is required": "give more rows",
    r"Found array with 0 feature\(s\).*? is required\.": "give at least one column",
    r"Expected 2D array, got scalar array instead": "Reshape your data, or give a table or a path",
    r"Expected 2D (array|input), got .*?instead": "Reshape your data to rows by features, one row "
    "as X.reshape(1, -1), one feature as X.reshape(-1, 1)",
    r"Found array with dim \d+.*? is required": "give rows by features",
    r"Complex data not supported": "give real numbers",
    r"could not convert string to float: .*|dtype='numeric' is not compatible with.*strings": (
        "drop text, or encode it as numbers first"
    ),
    r"setting an array element with a sequence": "give rows of the same length, of numbers",
    r"Input y contains NaN": "drop rows without a target",
    r"Unknown label type: \S+": "give classes, as whole numbers or text, or use a regressor",
}


class FewerError(Exception):
    """Base of every error that fewer raises on purpose.

    Examples
    --------
    >>> import fewer
    >>> try:
    ...     fewer.select([[1.0, 2.0]], k=1)
    ... except fewer.errors.FewerError as error:
    ...     print(type(error).__name__)
    InputError
    """


class InputError(FewerError, ValueError):
    """A value given to fewer cannot be used; the message names it and the remedy.

    Examples
    --------
    >>> import fewer
    >>> fewer.ColumnSubset(k=7).fit([[1.0, 2.0], [3.0, 5.0]])
    Traceback (most recent call last):
    fewer.errors.InputError: k=7 is more than the n_features=2 of X; choose k from 1 to 2
    """


class TypeInputError(InputError, TypeError):
    """A value of the wrong kind, such as ``k="ten"``.

    Examples
    --------
    >>> import fewer
    >>> fewer.ColumnSubset(k="ten").fit([[1.0, 2.0], [3.0, 5.0]])
    Traceback (most recent call last):
    fewer.errors.TypeInputError: k='ten' ...
    """


class FileFormatError(FewerError, ValueError):
    """A file or folder is damaged, not what it should be, or written by a newer version.

    Examples
    --------
    >>> import fewer
    >>> fewer.Panel.load("no such folder")
    Traceback (most recent call last):
    fewer.errors.FileFormatError: ...
    """


class MissingExtraError(FewerError, ImportError):
    """An optional library is not installed; the message names the extra that provides it.

    Examples
    --------
    >>> issubclass(MissingExtraError, ImportError)
    True
    """


class ProcessError(FewerError, RuntimeError):
    """A process of a parallel run ended or cannot be reached; the others end too.

    Examples
    --------
    >>> issubclass(ProcessError, RuntimeError)
    True
    """


class FewerWarning(UserWarning):
    """Base of every warning that fewer gives.

    Examples
    --------
    >>> warnings.simplefilter("ignore", FewerWarning)  # silence them all
    """


def __getattr__(name: str) -> Any:
    if name not in ("NotConvergedWarning", "NotFittedError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _define_with_sklearn()
    return globals()[name]


def _define_with_sklearn() -> None:
    """Define what is also scikit-learn's, which takes longer to import than most selections."""
    global NotConvergedWarning, NotFittedError  # noqa: PLW0603

    from sklearn import exceptions  # noqa: PLC0415

    class NotFittedError(FewerError, exceptions.NotFittedError):
        """A method that needs a fitted estimator was called before ``fit``.

        Examples
        --------
        >>> import fewer
        >>> fewer.ColumnSubset(k=2).transform([[1.0, 2.0]])
        Traceback (most recent call last):
        fewer.errors.NotFittedError: ...
        """

    class NotConvergedWarning(FewerWarning, exceptions.ConvergenceWarning):
        """The selector has not converged to single features; the message says what to change.

        Examples
        --------
        >>> import warnings
        >>> from fewer.errors import NotConvergedWarning
        >>> warnings.simplefilter("error", NotConvergedWarning)  # treat as an error
        """


@contextmanager
def translate_sklearn_errors() -> Iterator[None]:
    """Turn an error of scikit-learn's checks into a one-line `InputError` that adds a remedy."""
    try:
        yield
    except FewerError:
        raise
    except (TypeError, ValueError) as error:
        message = " ".join(str(error).split())
        kind = TypeInputError if isinstance(error, TypeError) else InputError
        for pattern, remedy in REMEDIES.items():
            if found := re.match(pattern, message):
                raise kind(f"{found[0].rstrip('.')}; {remedy}") from error
        raise kind(message) from error


def warn(message: str, category: type[FewerWarning] = FewerWarning) -> None:
    """Warn, pointing at the line of user code that called fewer."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fewer."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
