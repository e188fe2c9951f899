"""Synthetic rows with known answers: the features to choose, or what each row was made from."""

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_choice, check_number, check_whole
from fewer.datasets.catalogue import digest
from fewer.datasets.dataset import Dataset
from fewer.errors import InputError

__all__ = [
    "diffusion_mri",
    "gas_sensors",
    "mri_signal",
    "planted_manifold",
    "planted_products",
    "pulses",
]

Values = NDArray[np.float64]
CHUNK = 4096  # rows that are simulated at once

NOISE_SHARE = 0.4  # of the columns beside a manifold
FREQUENCY = 3.0  # of the waves of the manifold, in radians over half the range of a coordinate

# milliseconds, and milliseconds per square micrometre: 1 ms/um^2 is 1000 s/mm^2
SHELLS, SHELL_SHARES = (0.0, 0.5, 1.0, 2.0, 3.0), (0.1, 0.15, 0.2, 0.25, 0.3)
ECHO_TIMES = (80.0, 105.0, 130.0)
INVERSION_TIMES = np.geomspace(20, 7000, 28).round()
REPETITION_TIME = 7500.0
FREE_DIFFUSIVITY = 3.0  # of water at body temperature, um^2/ms
TISSUE = {
    "intra_fraction": (0.1, 0.9),
    "diffusivity": (1.0, 2.5),
    "t2_intra": (70.0, 130.0),
    "t2_extra": (40.0, 80.0),
    "t1": (600.0, 1600.0),
}
FREE_WATER = {"free_fraction": (0.0, 0.5), "t2_free": (500.0, 1500.0), "t1_free": (3000.0, 4500.0)}

GASES, SENSOR_TYPES = 6, 4
CONCENTRATIONS = (5.0, 1000.0)  # ppm
RESISTANCES = (1.5, 5.0)  # of sensors, powers of ten, in ohm
AVERAGES = (0.001, 0.01, 0.1)  # smoothing factors of moving averages of a response
BURSTS, GLITCHES = 0.004, 0.002  # shares of rows, and of single values, that are far off

WIDTHS, HEIGHTS = (0.02, 0.06), (0.5, 1.5)  # of pulses; the series has length 1


def planted_products(
    rows: int = 10_000, features: int = 100, factors: int = 8, noise: float = 0.1, seed: int = 0
) -> Dataset:
    """Independent factors, and columns that are products and other functions of one or two.

    The factors are standard normal columns. Every other column is a product of two factors, or the
    square, the absolute value or the sine of twice a factor or of the scaled sum of two,
    standardised, plus noise of the given standard deviation, and standardised again. A product of
    two factors is uncorrelated with both, and so is a square: hardly anything linear points at the
    factors.
    """
    check_whole("rows", rows, 2)
    check_whole("factors", factors, 2)
    pairs: list[tuple[int, ...]] = [*combinations(range(factors), 2)]
    terms = [(a,) for a in range(factors)] + pairs
    known = [("product", pair) for pair in pairs]
    known += [(kind, term) for kind in ("square", "absolute", "sine") for term in terms]
    check_whole("features", features, factors + 1)
    if features > factors + len(known):
        raise InputError(
            f"features={features}: {factors} factors have {len(known)} different products, "
            "squares, absolute values and sines, so use at most "
            f"features={factors + len(known)}, or more factors"
        )
    check_number("noise", noise)
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    z = _standardised(rng.standard_normal((rows, factors)))
    chosen = [known[i] for i in rng.permutation(len(known))[: features - factors]]
    derived = np.stack([_formula(z, kind, term) for kind, term in chosen], axis=1)
    derived = _standardised(derived) + noise * rng.standard_normal(derived.shape)
    names = [f"x{a}" for a in range(factors)] + [_text(kind, term) for kind, term in chosen]
    order = rng.permutation(features)
    X = np.hstack([z, _standardised(derived)])[:, order]
    return _dataset(
        "planted-products",
        X,
        np.array(names)[order],
        f"{factors} factors among {features} columns, the others products, squares, absolute "
        f"values and sines of them; seed {seed}",
        planted=order < factors,
        parameters={"factors": z},
    )


def _formula(z: Values, kind: str, term: tuple[int, ...]) -> Values:
    if kind == "product":
        return z[:, term[0]] * z[:, term[1]]
    u = z[:, list(term)].sum(axis=1) / len(term) ** 0.5
    if kind == "sine":
        return np.sin(2 * u)
    return np.square(u) if kind == "square" else np.abs(u)


def _text(kind: str, term: tuple[int, ...]) -> str:
    a, b = f"x{term[0]}", f"x{term[-1]}"
    if kind == "product":
        return f"{a}*{b}"
    u = a if len(term) == 1 else f"({a}+{b})/sqrt2"
    return {"square": f"[{u}]^2", "absolute": f"|{u}|", "sine": f"sin[2{u}]"}[kind]


def planted_manifold(
    rows: int = 10_000,
    features: int = 100,
    noise_features: int | None = None,
    dimensions: int = 4,
    noise: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Columns on a smooth manifold of few dimensions, and columns of pure noise.

    A column of the manifold is sin(w'z + c), with coordinates z uniform in [-1, 1], a random
    direction w of length 3 and a random phase c, standardised, plus noise, standardised again. A
    few of these columns determine all others of the manifold, though not linearly; a column of
    noise is known only if it is measured.
    """
    check_whole("rows", rows, 2)
    check_whole("features", features, 2)
    if noise_features is None:
        noise_features = round(NOISE_SHARE * features)
    check_whole("noise_features", noise_features, 0, features - 1)
    check_whole("dimensions", dimensions, 1)
    check_number("noise", noise)
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    smooth = features - noise_features
    z = rng.uniform(-1, 1, (rows, dimensions))
    w = rng.standard_normal((dimensions, smooth))
    w *= FREQUENCY / np.linalg.norm(w, axis=0)
    waves = _standardised(np.sin(z @ w + rng.uniform(0, 2 * np.pi, smooth)))
    waves += noise * rng.standard_normal(waves.shape)
    order = rng.permutation(features)
    X = _standardised(np.hstack([waves, rng.standard_normal((rows, noise_features))]))[:, order]
    names = [f"manifold_{j}" for j in range(smooth)] + [f"noise_{j}" for j in range(noise_features)]
    return _dataset(
        "planted-manifold",
        X,
        np.array(names)[order],
        f"{smooth} columns on a manifold of {dimensions} dimensions and {noise_features} of noise; "
        f"seed {seed}",
        planted=order < smooth,
        parameters={"coordinates": z},
    )


def diffusion_mri(
    rows: int = 10_000,
    features: int = 400,
    compartments: int = 2,
    snr: float = 50.0,
    seed: int = 0,
) -> Dataset:
    """Voxels of brain tissue, measured with many settings of a magnetic resonance scanner.

    Every column is an acquisition with its own diffusion weighting (b-value and gradient
    direction), echo time and inversion time; the protocol depends on their number only. Every row
    is a voxel with its own tissue parameters; `mri_signal` has the equations. Signals are in units
    of their mean over voxels without diffusion weighting and inversion, at the shortest echo time;
    noise is Rician, with standard deviation 1 / snr.
    """
    check_whole("rows", rows, 2)
    check_whole("features", features, 2)
    check_choice("compartments", compartments, (2, 3))
    check_number("snr", snr, above=0)
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    ranges = TISSUE if compartments == 2 else TISSUE | FREE_WATER
    tissue = {name: rng.uniform(*limits, rows) for name, limits in ranges.items()}
    axis = rng.standard_normal((rows, 3))
    tissue["orientation"] = axis / np.linalg.norm(axis, axis=1, keepdims=True)
    protocol = _mri_protocol(features)
    plain = {name: values[:1] for name, values in protocol.items()}
    plain |= {"b": np.zeros(1), "echo_time": np.array([min(ECHO_TIMES)])}
    plain |= {"inversion_time": np.array([np.inf])}
    unit = mri_signal(tissue, plain).mean()
    X = np.empty((rows, features))
    for start in range(0, rows, CHUNK):
        part = slice(start, start + CHUNK)
        signal = (
            mri_signal({name: values[part] for name, values in tissue.items()}, protocol) / unit
        )
        real, imaginary = rng.standard_normal((2, *signal.shape)) / snr
        X[part] = np.hypot(signal + real, imaginary)
    parts = zip(*(protocol[key] for key in ("b", "echo_time", "inversion_time")), strict=True)
    names = [f"{i}: b {b:g}, TE {te:g}, TI {ti:g}" for i, (b, te, ti) in enumerate(parts)]
    return _dataset(
        "diffusion-mri",
        X,
        np.array(names),
        f"Diffusion and relaxation in {compartments} compartments, {features} acquisitions, "
        f"signal-to-noise ratio {snr:g}; seed {seed}",
        parameters=tissue,
        acquisition=protocol,
    )


def mri_signal(tissue: dict[str, Values], protocol: dict[str, Values]) -> Values:
    r"""Signal of each voxel (row) in each acquisition (column), with its sign and without noise.

    With gradient direction g, axis n of the fibres, diffusivity D along them, share f of the water
    inside them and share w of free water:

    .. math:: S = (1 - w) (f R_i e^{-b D (g \cdot n)^2} + (1 - f) R_e e^{-b (D_\perp +
        (D - D_\perp) (g \cdot n)^2)}) + w R_w e^{-b D_w},
        \quad D_\perp = (1 - f) D, \quad D_w = 3

    A "stick" (Behrens et al., 2003), a "zeppelin" whose diffusion across the fibres is hindered by
    their density (Szafer et al., 1995; Zhang et al., 2012) and a "ball" (Panagiotaki et al., 2012),
    each with relaxation after inversion, of which the scanner measures the magnitude:

    .. math:: R = e^{-TE / T_2} (1 - 2 e^{-TI / T_1} + e^{-TR / T_1})
    """
    column = {name: values[:, None] for name, values in tissue.items() if values.ndim == 1}
    b, echo, inversion = (protocol[key] for key in ("b", "echo_time", "inversion_time"))

    def relaxation(t2: Values, t1: Values) -> Values:
        recovered = 1 - 2 * np.exp(-inversion / t1) + np.exp(-REPETITION_TIME / t1)
        return np.exp(-echo / t2) * recovered

    f, along = column["intra_fraction"], column["diffusivity"]
    across = (1 - f) * along
    cosine = np.square(tissue["orientation"] @ protocol["direction"].T)
    stick = relaxation(column["t2_intra"], column["t1"]) * np.exp(-b * along * cosine)
    hindered = np.exp(-b * (across + (along - across) * cosine))
    zeppelin = relaxation(column["t2_extra"], column["t1"]) * hindered
    signal = f * stick + (1 - f) * zeppelin
    if "free_fraction" in column:
        ball = relaxation(column["t2_free"], column["t1_free"]) * np.exp(-b * FREE_DIFFUSIVITY)
        signal += column["free_fraction"] * (ball - signal)
    return signal


def _mri_protocol(acquisitions: int) -> dict[str, Values]:
    """Settings of each acquisition: points of a Halton sequence, which fill every range evenly."""
    shell, echo, inversion, height, turn = (
        _van_der_corput(acquisitions, base) for base in (2, 3, 5, 7, 11)
    )
    b = np.array(SHELLS)[np.searchsorted(np.cumsum(SHELL_SHARES)[:-1], shell, side="right")]
    z, angle = 2 * height - 1, 2 * np.pi * turn
    ring = np.sqrt(1 - z**2)
    direction = np.stack([ring * np.cos(angle), ring * np.sin(angle), z], axis=1)
    return {
        "b": b,
        "direction": np.where(b[:, None] > 0, direction, 0.0),
        "echo_time": np.array(ECHO_TIMES)[(echo * len(ECHO_TIMES)).astype(int)],
        "inversion_time": INVERSION_TIMES[(inversion * len(INVERSION_TIMES)).astype(int)],
    }


def _van_der_corput(n: int, base: int) -> Values:
    """The numbers 1 to n with their digits mirrored at the point, all in (0, 1)."""
    number, value, unit = np.arange(1, n + 1), np.zeros(n), 1.0
    while number.any():
        unit /= base
        value += unit * (number % base)
        number = number // base
    return value


def pulses(
    rows: int = 10_000, features: int = 200, count: int = 3, noise: float = 0.02, seed: int = 0
) -> Dataset:
    """Time series of pulses that come sooner or later, wider or narrower, higher or lower.

    The series has length 1 and as many equal parts as pulses; each part has one Gaussian pulse,
    centred anywhere in it, with a width from 0.02 to 0.06 and a height from 0.5 to 1.5. Samples
    that are close in time tell nearly the same, so many panels are as good as the best.
    """
    check_whole("rows", rows, 2)
    check_whole("features", features, 2)
    check_whole("count", count, 1)
    check_number("noise", noise)
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    time = np.linspace(0, 1, features)
    position = (np.arange(count) + rng.uniform(0, 1, (rows, count))) / count
    width, height = rng.uniform(*WIDTHS, (rows, count)), rng.uniform(*HEIGHTS, (rows, count))
    X = noise * rng.standard_normal((rows, features))
    for p, w, h in zip(position.T, width.T, height.T, strict=True):
        X += h[:, None] * np.exp(-0.5 * np.square((time - p[:, None]) / w[:, None]))
    return _dataset(
        "pulses",
        X,
        np.array([f"sample_{j}" for j in range(features)]),
        f"Series of {features} samples with {count} pulses each; seed {seed}",
        parameters={"position": position, "width": width, "height": height},
        acquisition={"time": time},
    )


def gas_sensors(
    rows: int = 5_358, sensors: int = 16, noise: float = 0.002, seed: int = 0
) -> Dataset:
    """Responses of an array of metal-oxide sensors to six gases, in their own units.

    Every sensor has eight features: the change of its resistance, the same relative to that in
    clean air, and the extremes of three moving averages while the gas comes and goes. The response
    is a power of the concentration, which is uniform on a logarithmic scale; temperature and
    humidity shift it, and four types of sensors respond alike. Variances span ten orders of
    magnitude. Tails are heavy: noise is proportional to the value and has a Student distribution
    with two degrees of freedom, 0.4% of the rows are bursts in which every sensor is off by a
    factor of its own, and so are 0.2% of the single values.
    """
    check_whole("rows", rows, 2)
    check_whole("sensors", sensors, 1)
    check_number("noise", noise)
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    gas = rng.integers(GASES, size=rows)
    least, most = CONCENTRATIONS
    ppm = np.exp(rng.uniform(np.log(least), np.log(most), rows))
    of_type = np.arange(sensors) % SENSOR_TYPES
    gain = np.exp(rng.normal(0, 0.8, (SENSOR_TYPES, GASES)))[of_type]
    gain *= np.exp(rng.normal(0, 0.1, gain.shape))
    power = rng.uniform(0.4, 0.9, (SENSOR_TYPES, GASES))[of_type]
    power += rng.normal(0, 0.03, power.shape)
    delay = 10 ** rng.uniform(-0.3, 0.3, (sensors, GASES))
    ohm = 10 ** rng.uniform(*RESISTANCES, sensors)
    weather = rng.normal(0, 0.1, (rows, 2)) @ rng.standard_normal((2, sensors))
    response = gain[:, gas].T * (ppm[:, None] / 100) ** power[:, gas].T * np.exp(weather)
    burst = rng.random(rows) < BURSTS
    response[burst] *= np.exp(rng.standard_normal((burst.sum(), sensors)))
    columns: list[Values] = []
    names: list[str] = []
    for s in range(sensors):
        r, slow = response[:, s], delay[s, gas] * np.exp(rng.normal(0, 0.05, rows))
        own = {"change": ohm[s] * r, "relative": 1 + r}
        for a in AVERAGES:
            size = ohm[s] ** 0.75 * a**0.3
            own[f"rise {a:g}"] = size * r * a / (a + 0.01 * slow)
            own[f"fall {a:g}"] = -size * r**0.9 * a / (a + 0.003 / slow)
        columns += own.values()
        names += [f"sensor {s}: {name}" for name in own]
    X = np.stack(columns, axis=1)
    X *= 1 + noise * rng.standard_t(2, X.shape)
    glitch = rng.random(X.shape) < GLITCHES
    X[glitch] *= np.exp(rng.normal(0, 0.5, glitch.sum()))
    return _dataset(
        "gas-sensors",
        X,
        np.array(names),
        f"{sensors} gas sensors with 8 features each, in their own units, with heavy tails; "
        f"seed {seed}",
        parameters={"gas": gas, "concentration": ppm, "burst": burst},
    )


def _standardised(X: Values) -> Values:
    X = X - X.mean(axis=0)
    return X / X.std(axis=0)


def _dataset(
    name: str, X: Values, names: NDArray[np.str_], description: str, **answers: Any
) -> Dataset:
    return Dataset(
        name=name,
        X=X,
        y=None,
        names=names,
        synthetic=True,
        description=f"SYNTHETIC rows, not measured data: {description}",
        source="fewer.datasets.synthetic",
        licence="MIT",
        digest=digest(X),
        **answers,
    )
