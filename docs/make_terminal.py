"""Draw docs/terminal.svg: what the real program prints, typed on a real file.

Run it anew when the output of a command changes: python docs/make_terminal.py
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text
from sklearn.datasets import load_breast_cancer

HERE = Path(__file__).parent
WIDTH = 88
PROGRAM = "import sys; sys.argv[0] = 'fewer'; from fewer.cli import main; main()"
TYPED = (
    ("inspect", "tumours.csv"),
    ("select", "tumours.csv", "-k", "5", "--ignore", "patient,diagnosis", "--out", "panel"),
    ("report", "panel"),
    ("impute", "panel", "measured.csv", "--out", "all.csv"),
)


def main() -> None:
    """Type the commands in a fresh folder and draw what they print."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="256")
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for words in TYPED:
            screen.print(Text.assemble(("$ ", "bold green"), ("fewer " + " ".join(words), "bold")))
            screen.print(Text.from_ansi(run(words, folder)))
            if words[0] == "select":
                write_measured(Path(folder))
    # fonts of the reader's own: a picture must not call a server
    svg = re.sub(r"@font-face \{.*?\}\s*", "", screen.export_svg(title="fewer"), flags=re.S)
    (HERE / "terminal.svg").write_text(svg.replace("Fira Code,", "Fira Code, Menlo, Consolas,"))


def write_data(folder: Path) -> None:
    """The breast cancer data of scikit-learn as somebody would have them in a file."""
    data = load_breast_cancer(as_frame=True)
    table = data.data.copy()
    table.insert(0, "patient", [f"P{i:04}" for i in range(len(table))])
    table["diagnosis"] = np.where(data.target == 0, "malignant", "benign")
    table.loc[::25, "mean texture"] = np.nan
    table.to_csv(folder / "tumours.csv", index=False)


def write_measured(folder: Path) -> None:
    """New rows of which only the panel's features were measured."""
    import fewer  # noqa: PLC0415 only after the first commands, which must not wait for it

    features = fewer.Panel.load(folder / "panel").features
    rows = load_breast_cancer(as_frame=True).data.iloc[:100][features]
    rows.insert(0, "patient", [f"Q{i:04}" for i in range(100)])
    rows.to_csv(folder / "measured.csv", index=False)


def run(words: tuple[str, ...], folder: str) -> str:
    """What a command prints on a terminal, blank lines at its end left out."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"fewer {' '.join(words)} failed:\n{done.stderr}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip()) + "\n"


if __name__ == "__main__":
    main()
