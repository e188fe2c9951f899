"""What the paper reports, and which of it can be on the scale of our figures."""

__all__ = ["ACCURACIES", "ERRORS", "OFF_SCALE", "SAME_DATA", "SIZES"]

# Table 1 and Table 2 of the paper, by data set and method (names of `fewer.paper.methods`).
_METHODS = ("pca", "laplacian", "aefs", "udfs", "mcfs", "pfa", "cae-gradient")

_ERRORS = {
    "mnist": (0.012, 0.070, 0.033, 0.035, 0.064, 0.051, 0.026),
    "fashion": (0.012, 0.128, 0.047, 0.133, 0.096, 0.043, 0.041),
    "coil20": (0.008, 0.126, 0.061, 0.116, 0.085, 0.061, 0.093),
    "mice": (0.003, 0.603, 0.783, 0.867, 0.695, 0.871, 0.372),
    "isolet": (0.009, 0.344, 0.301, 0.375, 0.471, 0.316, 0.299),
    "har": (0.002, 0.139, 0.112, 0.173, 0.170, 0.197, 0.108),
}
_ACCURACIES = {
    "mnist": (0.925, 0.646, 0.690, 0.892, 0.807, 0.852, 0.906),
    "fashion": (0.825, 0.517, 0.580, 0.547, 0.513, 0.683, 0.677),
    "coil20": (0.996, 0.389, 0.580, 0.556, 0.635, 0.642, 0.586),
    "mice": (0.721, 0.134, 0.125, 0.139, 0.139, 0.130, 0.134),
    "isolet": (0.895, 0.407, 0.576, 0.455, 0.522, 0.622, 0.685),
    "har": (0.796, 0.280, 0.240, 0.287, 0.295, 0.364, 0.420),
}

ERRORS = {data: dict(zip(_METHODS, row, strict=True)) for data, row in _ERRORS.items()}
ACCURACIES = {data: dict(zip(_METHODS, row, strict=True)) for data, row in _ACCURACIES.items()}

SIZES = {"mnist": 50, "fashion": 50, "isolet": 50, "coil20": 50, "mice": 10, "har": 50}

# The errors of these rows, except PCA's, cannot be mean squares over features in [0, 1], whose
# variance is at most 0.25 and mostly far below; COIL-20's exceed what 50 random pixels give.
OFF_SCALE = ("coil20", "mice", "isolet", "har")

# Where the rows at hand are those of the paper ("Activity" is not HAR).
SAME_DATA = ("mnist", "fashion", "isolet", "coil20", "mice")
