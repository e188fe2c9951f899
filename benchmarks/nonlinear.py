"""Network decoders: test error of every strategy's features, decoder retrained, three seeds.

    FEWER_DATA=... python benchmarks/nonlinear.py [--data mnist,coil20] [--k 20,50] \
        [--decoders 3k/2,320x320] [--seeds 3] [--device auto] [--quick] [--out nonlinear.json]

Every method sees the same training rows (see cases.py) and only chooses features; then the same
network is trained on them in the same way, from the same seed, and scored on the test rows.
"select" is the panel as a user gets it: its own network, which is not trained on the measured
features, since these are returned as measured. "select, same" is its features with the network of
all others, and "css, kept" the network of css with the measured features returned as they are:
together they separate the effect of the choice from the rest. "linear" is least squares on the
search's features, which shows what a network adds. Results that --out already holds are not
computed again, so a run can be interrupted, or divided between processes by --data. With
--merge a.json,b.json only the table of earlier runs is printed; with --quick the concrete
autoencoders, which take most of the time, are left out.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fewer
from cases import Case, load_case

NAMES = ("mnist", "fashion", "isolet", "coil20", "mice")
CAES = ("gradient CAE", "closed form CAE", "random features")
SINGLE = ("css", *CAES, "network swaps")
USERS = "as users get it"
METHODS = (*SINGLE, "select, same", USERS, "css, kept", "select")


def panel_error(
    case: Case, columns: np.ndarray, decoder: Any, seed: int, device: str, kept: bool = False
) -> tuple[float, float]:
    """Test error of a decoder that is trained on these columns alone; and without their own.

    Unless they are ``kept``, the decoder reconstructs the measured columns, too.
    """
    model = fewer.ConcreteAutoencoder(
        len(columns),
        decoder=decoder,
        solver="gradient",
        keep_measured=kept,
        include=columns,
        random_state=seed,
        device=device,
    ).fit(case.train)
    wrong = (model.reconstruct(case.test) - case.test) ** 2
    return float(wrong.mean()), float(np.delete(wrong, columns, axis=1).sum() / wrong.size)


def choose(case: Case, k: int, decoder: Any, seed: int, device: str, quick: bool) -> dict[str, Any]:
    """Columns and seconds of each method."""
    common = {"random_state": seed, "device": device}
    models = {
        "gradient CAE": {"decoder": decoder, "solver": "gradient"},
        "closed form CAE": {"solver": "closed_form"},
        "random features": {"decoder": decoder, "solver": "closed_form"},
    }
    found: dict[str, Any] = {}

    def record(name: str, began: float, columns: np.ndarray) -> None:
        found[name] = (np.asarray(columns), time.perf_counter() - began)

    began = time.perf_counter()
    record("css", began, fewer.ColumnSubset(k, **common).fit(case.train).columns_)
    for name, about in ({} if quick else models).items():
        began = time.perf_counter()
        model = fewer.ConcreteAutoencoder(k, refine=None, **about, **common)
        record(name, began, model.fit(case.train).columns_)
    began = time.perf_counter()
    panel = fewer.select(
        case.train, k, decoder=decoder, scale="none", row_groups=case.groups, **common
    )
    record("select, same", began, panel.indices)
    found["select"] = float(panel.score(case.test).errors.mean())
    swapped = [row for row in panel.leaderboard if row["strategy"] == "search, network swaps"]
    found["network swaps"] = (np.asarray(swapped[0]["features"]), swapped[0]["seconds"])
    found["winner"] = panel.leaderboard[0]["strategy"]
    return found


def cell(
    name: str, k: int, decoder: tuple[int, ...], seed: int, device: str, quick: bool
) -> dict[str, Any]:
    """All methods on one case with one seed."""
    case = load_case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fewer.errors.FewerWarning)
        found = choose(case, k, decoder, seed, device, quick)
        row: dict[str, Any] = {"winner": found.pop("winner")}
        own, seconds = found.pop("select"), found["select, same"][1]
        row["select"] = {"error": own, "seconds": seconds}
        for method, (columns, seconds) in found.items():
            error, apart = panel_error(case, columns, decoder, seed, device)
            row[method] = {"error": error, "apart": apart, "seconds": seconds}
        users = [
            panel_error(case, found[method][0], decoder, seed, device, kept=True)[0]
            for method in ("select, same", "css")
        ]
        row[USERS] = {"error": users[0], "css": users[1], "seconds": row["select"]["seconds"]}
        row["css, kept"] = {"error": row["css"]["apart"], "seconds": row["css"]["seconds"]}
    css = found["css"][0]
    B = np.linalg.lstsq(
        np.c_[case.train[:, css], np.ones(len(case.train))], case.train, rcond=None
    )[0]
    linear = np.c_[case.test[:, css], np.ones(len(case.test))] @ B
    row["linear"] = {"error": float(((linear - case.test) ** 2).mean()), "seconds": 0.0}
    return row


def show(results: dict[str, dict[str, Any]], where: str) -> None:
    """One table: mean over seeds, as ratios to css."""
    methods = [m for m in METHODS if all(m in row for row in results.values())]
    table = Table(title=f"Test error / css's, decoder retrained, {where}")
    for column in (
        "data",
        "k",
        "decoder",
        "seeds",
        "css",
        *methods[1:],
        "linear",
        "select / best single",
    ):
        table.add_column(column, justify="right")
    cases: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for key, row in results.items():
        cases.setdefault(tuple(key.split("|")[:3]), []).append(row)
    ratios: dict[str, list[float]] = {method: [] for method in (*methods, "linear", "margin")}
    for (name, k, decoder), rows in cases.items():
        mean = {m: np.mean([r[m]["error"] for r in rows]) for m in (*methods, "linear")}
        base = dict.fromkeys(mean, mean["css"])
        if USERS in mean:
            base[USERS] = np.mean([row[USERS]["css"] for row in rows])
        for method, value in mean.items():
            ratios[method].append(value / base[method])
        single = min(mean[m] for m in SINGLE if m in methods)
        ratios["margin"].append(mean["select"] / single)
        table.add_row(
            name,
            k,
            decoder,
            str(len(rows)),
            f"{mean['css']:.5f}",
            *(f"{ratios[m][-1]:.4f}" for m in (*methods[1:], "linear")),
            f"{mean['select'] / single:.4f}",
        )
    table.add_row(
        "mean",
        "",
        "",
        "",
        "",
        *(f"{np.mean(ratios[m]):.4f}" for m in (*methods[1:], "linear", "margin")),
        style="bold",
    )
    times = {m: np.mean([r[m]["seconds"] for r in results.values()]) for m in methods}
    console = Console(width=170)
    console.print(table)
    console.print("mean seconds to choose: " + ", ".join(f"{m} {s:.1f}" for m, s in times.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join(NAMES))
    parser.add_argument("--k", default="20,50")
    parser.add_argument("--decoders", default="3k/2,320x320")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="nonlinear.json")
    parser.add_argument("--merge")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    if options.merge:
        merged: dict[str, Any] = {}
        for file in options.merge.split(","):
            merged |= json.loads(Path(file).read_text())
        show(merged, where)
        return
    out = Path(options.out)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(options.seeds):
        for name in options.data.split(","):
            for k in map(int, options.k.split(",")):
                for text in options.decoders.split(","):
                    key = f"{name}|{k}|{text}|{seed}"
                    if key in results:
                        continue
                    widths = (3 * k // 2,) if text == "3k/2" else tuple(map(int, text.split("x")))
                    results[key] = cell(name, k, widths, seed, options.device, options.quick)
                    draft = out.with_name(out.name + ".part")
                    draft.write_text(json.dumps(results, indent=1))
                    draft.replace(out)
                    print(key, results[key], flush=True)
    show(results, where)


if __name__ == "__main__":
    main()
