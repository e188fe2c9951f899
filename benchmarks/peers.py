"""Other packages beside ours: test error, training objective and time, as ratios to greedy search.

    pip install -e ".[peers]"
    FEWER_DATA=... python benchmarks/peers.py [--data mnist,mice] [--k 10,50] [--targets mice] \
        [--methods "select;fastcan"] [--limit 1800] [--threads 1] [--out peers.json] \
        [--python skmatter=PYTHON]
    python benchmarks/peers.py --merge a.json,b.json

Every method chooses k columns of the same training rows (paper/case.py: splits by mouse, patient,
official or random; scaling fitted on training rows) in a process of its own, which is ended after
--limit seconds. Then all panels of a case are judged alike. "test error": mean squared error of a
linear decoder, solved exactly on the training rows, with one ridge penalty for all panels of the
case, namely the one with the lowest geometric mean of their errors on validation rows. "training
objective": residual of least squares on the training covariance. "CPU": seconds of the processor to
choose, from rows in memory to columns, imports not counted, with as many threads as --threads;
where that takes less than a second, the fastest of three. Means of errors are arithmetic, those of
times geometric, over the cases that a method finished; the last column is the longest time.

With labels (--targets, k = 50): mean accuracy on test rows of the network that `fewer.select`
trains on each panel, with one hidden layer of 67, over five seeds (and three splits of Mice).
LassoNet and STG, which take hours otherwise, choose from at most 2,000 of the rows.

A package that is missing, fails, or takes too long gets a dash, and the reason below the tables. A
peer whose requirements contradict ours runs with another interpreter: --python names it for a
distribution, and can be repeated. Results that --out holds are not computed again; with --merge,
only the tables of earlier runs are printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import fewer
from cases import NAMES, load, make_case
from fewer.search import residual
from paper.case import Case, mean_square
from paper.experiment import processor
from peer_methods import LABELLED, METHODS, NETWORK

SEED = 0
BASE = "greedy search"
RIDGES = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # as parts of the mean variance of a feature
TARGETS = {"mice": 3, "isolet": 1}  # number of splits; that of ISOLET is official
TARGET_K, TRAININGS = 50, 5
WORKER = Path(__file__).with_name("peer_methods.py")
DASH = "–"

Panels = Mapping[str, list[int]]


# -- choose -------------------------------------------------------------------------------------


def choose(
    method: str, folder: Path, k: int, *, python: str, limit: float, threads: int
) -> dict[str, Any]:
    """What the worker reports, or why it does not."""
    libraries = ("OMP", "OPENBLAS", "MKL")
    environment = os.environ | {f"{one}_NUM_THREADS": str(threads) for one in libraries}
    command = [python, str(WORKER), str(folder), method, str(k), str(SEED)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {limit:g} seconds"}
    except OSError as error:
        return {"failed": f"{python} does not run: {error.strerror}"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"failed": lines[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found |= {"machine": processor(), "date": datetime.now(UTC).date().isoformat()}
    distinct = len(set(found["columns"]))
    return found if distinct == k else {"failed": f"{distinct} of {k} columns chosen"}


def store_rows(case: Case, folder: Path, *, labels: bool) -> None:
    """For the workers: centred rows, and what else `peer_methods.Rows` has."""
    np.save(folder / "rows.npy", case.fit - case.fit.mean(axis=0))
    if case.groups is not None:
        np.save(folder / "groups.npy", np.unique(case.groups, return_inverse=True)[1])
    if labels and case.labels is not None:
        np.save(folder / "labels.npy", case.labels)


def fill(
    cell: dict[str, Any],
    case: Case,
    k: int,
    methods: list[str],
    options: argparse.Namespace,
    save: Callable[[], None],
) -> None:
    """Choose with all methods that have no panel yet."""
    lacking = [one for one in methods if "columns" not in cell.get(one, {})]
    with tempfile.TemporaryDirectory() as place:
        store_rows(case, Path(place), labels=methods[0] in LABELLED)
        for method in lacking:
            package = (METHODS | LABELLED)[method].package
            cell[method] = choose(
                method,
                Path(place),
                k,
                python=options.python.get(package, sys.executable),
                limit=options.limit,
                threads=options.threads,
            )
            save()


# -- judge --------------------------------------------------------------------------------------


def decoder_errors(train: np.ndarray, test: np.ndarray, panel: list[int]) -> np.ndarray:
    """Mean squared errors on test rows of the exact linear decoder, for each ridge penalty."""
    mean = train.mean(axis=0)
    X, new = train - mean, test - mean
    values, vectors = np.linalg.eigh(X[:, panel].T @ X[:, panel] / len(X))
    B = vectors.T @ (X[:, panel].T @ X) / len(X)  # k x d
    Z = new[:, panel] @ vectors
    unit = np.square(X).mean()
    return np.array([mean_square(Z / (values + r * unit) @ B, new) for r in RIDGES])


def judge(case: Case, panels: Panels) -> tuple[float, dict[str, dict[str, float]]]:
    """The ridge penalty of this case, and the test error and training objective of each panel."""
    held = [decoder_errors(case.train, case.validation, panel) for panel in panels.values()]
    best = int(np.log(held).mean(axis=0).argmin())
    centred = case.fit - case.fit.mean(axis=0)
    C = centred.T @ centred / len(centred)
    return RIDGES[best], {
        name: {
            "error": float(decoder_errors(case.fit, case.test, panel)[best]),
            "objective": residual(C, panel),
        }
        for name, panel in panels.items()
    }


def accuracies(case: Case, panel: list[int]) -> list[float]:
    """Test accuracy of the network that `select` trains on these columns, for several seeds."""
    found = []
    for seed in range(TRAININGS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fewer.errors.FewerWarning)
            predictor = fewer.select(
                case.fit[:, panel],
                len(panel),
                target=case.labels,
                decoder=NETWORK,
                scale="none",
                row_groups=case.groups,
                random_state=seed,
                device="cpu",
            )
        predicted = predictor.predict(case.test[:, panel])
        found.append(float((predicted == case.test_labels).mean()))
    return found


def chosen(cell: dict[str, Any]) -> dict[str, list[int]]:
    return {name: part["columns"] for name, part in cell.items() if "columns" in part}


# -- tables -------------------------------------------------------------------------------------


def seconds(value: float) -> str:
    """Seconds, or a ratio of them, with two digits."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratios(cells: list[dict[str, Any]], method: str, what: str) -> np.ndarray:
    """Of a method to greedy search, for the cases that both finished."""
    both = [(cell[method], cell[BASE]) for cell in cells if {method, BASE} <= set(cell)]
    return np.array([own[what] / base[what] for own, base in both if what in own and what in base])


def version(cells: list[dict[str, Any]], method: str) -> str:
    known = {cell[method]["version"] for cell in cells if "version" in cell.get(method, {})}
    return ", ".join(sorted(known)) or DASH


def summary(cells: list[dict[str, Any]], methods: list[str]) -> str:
    """One row per method: means over all cases."""
    head = ["chosen by", "version", "cases", "test error", "worst", "training objective"]
    head += ["CPU", "most CPU s"]
    rows = []
    for method in methods:
        error, objective = (ratios(cells, method, what) for what in ("error", "objective"))
        parts = [method, version(cells, method), str(len(error)), *[DASH] * 5]
        if len(error):
            cpu = np.exp(np.log(ratios(cells, method, "cpu")).mean())
            most = max(cell[method].get("cpu", 0) for cell in cells if method in cell)
            parts[3:] = [f"{error.mean():.3f}", f"{error.max():.3f}", f"{objective.mean():.3f}"]
            parts += [seconds(cpu), seconds(most)]
        rows.append(parts)
    return markdown(head, rows)


def by_data(results: dict[str, Any], methods: list[str]) -> str:
    """Test error as a ratio to greedy search on each data set, mean over k."""
    names = list(dict.fromkeys(key.split("|")[0] for key in results))
    rows = []
    for method in methods:
        found = [
            ratios([c for key, c in results.items() if key.split("|")[0] == name], method, "error")
            for name in names
        ]
        rows.append([method, *(f"{part.mean():.3f}" if len(part) else DASH for part in found)])
    return markdown(["test error / greedy search", *names], rows)


def with_labels(results: dict[str, Any], methods: list[str]) -> str:
    """Mean accuracy and CPU seconds on each data set."""
    names = list(dict.fromkeys(key.split("|")[0] for key in results))
    head = ["chosen by", "version"]
    for name in names:
        head += [name, f"{name}, CPU s"]
    rows = []
    for method in methods:
        parts = [method, version(list(results.values()), method)]
        for name in names:
            cells = [cell for key, cell in results.items() if key.split("|")[0] == name]
            done = [cell[method] for cell in cells if "accuracy" in cell.get(method, {})]
            accuracy = [np.mean(one["accuracy"]) for one in done]
            parts += [f"{np.mean(accuracy):.3f}" if done else DASH]
            parts += [seconds(float(np.mean([one["cpu"] for one in done]))) if done else DASH]
        rows.append(parts)
    return markdown(head, rows)


def failures(results: dict[str, Any]) -> list[str]:
    """Why there are dashes, one line per method and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, cell in results.items():
        data, k, *_ = key.split("|")
        for method, part in cell.items():
            if "failed" in part:
                found.setdefault((method, part["failed"]), []).append(f"{data} k = {k}")
    return [
        f"- {method}: {reason} ({'; '.join(cases)})" for (method, reason), cases in found.items()
    ]


def origin(results: dict[str, Any]) -> str:
    """Machines and dates of the choices."""
    parts = [part for cell in results.values() for part in cell.values()]
    known = [sorted({part[what] for part in parts if what in part}) for what in ("machine", "date")]
    return "; ".join(", ".join(values) for values in known)


def show(results: dict[str, Any]) -> None:
    plain = {key: cell for key, cell in results.items() if not key.endswith("labels")}
    labelled = {key: cell for key, cell in results.items() if key.endswith("labels")}
    for part, known in ((plain, METHODS), (labelled, LABELLED)):
        methods = [one for one in known if any(one in cell for cell in part.values())]
        if not part:
            continue
        if known is METHODS:
            print(f"\n{summary(list(part.values()), methods)}\n\n{by_data(part, methods)}")
        else:
            print(f"\n{with_labels(part, methods)}")
        print(f"\n{origin(part)}")
        print("\n".join(["", *failures(part)]))


def merged(files: str) -> dict[str, Any]:
    """Results of several runs; of a method that two have for one case, the last."""
    found: dict[str, Any] = {}
    for file in files.split(","):
        for key, cell in json.loads(Path(file).read_text()).items():
            found[key] = found.get(key, {}) | cell
    return found


def interpreter(text: str) -> tuple[str, str]:
    package, _, python = text.partition("=")
    if not python:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form package=interpreter")
    return package, python


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=",".join(NAMES), help="'' for none")
    parser.add_argument("--k", default="10,50")
    parser.add_argument("--targets", default=",".join(TARGETS), help="'' for none")
    parser.add_argument("--methods", help="names of methods, separated by semicolons")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for each choice")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default="peers.json")
    parser.add_argument("--python", type=interpreter, action="append", default=[])
    parser.add_argument("--merge", help="files of earlier runs, separated by commas")
    options = parser.parse_args()
    options.python = dict(options.python)
    options.data, options.targets = (
        [name for name in text.split(",") if name] for text in (options.data, options.targets)
    )
    asked = options.methods.split(";") if options.methods else [*METHODS, *LABELLED]
    unknown = [name for name in asked if name not in METHODS | LABELLED]
    if unknown:
        known = "; ".join(METHODS | LABELLED)
        parser.error(f"unknown methods: {'; '.join(unknown)}; there are: {known}")
    options.plain = [BASE, *(name for name in METHODS if name in asked and name != BASE)]
    options.labelled = [name for name in LABELLED if name in asked]
    return options


def main() -> None:
    options = arguments()
    if options.merge:
        show(merged(options.merge))
        return
    out = Path(options.out)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}

    def save() -> None:
        draft = out.with_name(out.name + ".part")
        draft.write_text(json.dumps(results))
        draft.replace(out)

    for name in options.data:
        case = make_case(load(name))
        for k in map(int, options.k.split(",")):
            cell = results.setdefault(f"{name}|{k}", {})
            fill(cell, case, k, options.plain, options, save)
            ridge, found = judge(case, chosen(cell))
            for method, scores in found.items():
                cell[method] |= scores
            save()
            parts = {one: round(float(ratios([cell], one, "error")[0]), 3) for one in found}
            print(f"{name} {case.fit.shape}, k = {k}, ridge {ridge:g}: {parts}", flush=True)
    for name in options.targets if options.labelled else []:
        for split in range(TARGETS[name]):
            case = make_case(load(name), seed=split)
            cell = results.setdefault(f"{name}|{TARGET_K}|{split}|labels", {})
            fill(cell, case, TARGET_K, options.labelled, options, save)
            for method, panel in chosen(cell).items():
                if "accuracy" not in cell[method]:
                    cell[method]["accuracy"] = accuracies(case, panel)
            save()
            parts = {one: round(float(np.mean(cell[one]["accuracy"])), 3) for one in chosen(cell)}
            print(f"{name} {case.fit.shape}, split {split}: {parts}", flush=True)
    show(results)


if __name__ == "__main__":
    main()
