"""The pages of the documentation: their code runs, their shell commands run, their links lead on.

Blocks of one page run one after the other in one folder, ``python`` and ``sh`` alike; a ``text``
block right after one is what that block prints. What should not run is written as ``text``, or
has ``<!-- not run: why -->`` before it.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewer.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"_build", "gallery", "generated"} & set(path.relative_to(DOCS).parts)
)
BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n+)?^```(?P<kind>python|sh)\n(?P<code>.*?)^```$"
    r"(?:\n+```text\n(?P<shown>.*?)^```$)?",
    re.S | re.M,
)
PLAIN = re.compile(r"fewer ([^|<>&;$]*)(?:> ([\w.]+))?")
NEEDS = {"how-to/anndata.md": "anndata", "how-to/deploy.md": "onnxruntime"}


def blocks(page):
    """(line, kind, code, what it prints or None) of every block that is to run."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if not found["skip"]:
            line = text.count("\n", 0, found.start("code"))
            yield line, found["kind"], found["code"], found["shown"]


def run_python(code, name, space):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), space)
    return printed.getvalue()


def run_shell(code):
    """As a user would type it. Plain commands of fewer run in this process, which is quicker."""
    lines = code.replace("\\\n", " ").splitlines()
    if all(PLAIN.fullmatch(line) for line in lines):
        return "".join(run_fewer(*PLAIN.fullmatch(line).groups()) for line in lines)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-e", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_fewer(arguments, file):
    done = CliRunner().invoke(app, shlex.split(arguments))
    assert done.exit_code == 0, f"fewer {arguments}\n{done.output}"
    if file is None:
        return done.stdout
    Path(file).write_text(done.stdout, encoding="utf-8")
    return ""


@pytest.fixture
def _text_as_before():
    """Pages may change how pandas holds text; other tests should not notice."""
    pd = pytest.importorskip("pandas")
    with warnings.catch_warnings(action="ignore"):
        kept = pd.get_option("future.infer_string")
    yield
    with warnings.catch_warnings(action="ignore"):
        pd.set_option("future.infer_string", kept)


@pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")  # anndata under pandas 3
@pytest.mark.usefixtures("_text_as_before")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(blocks(page))],
    ids=lambda p: p.relative_to(DOCS).as_posix(),
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    name = page.relative_to(DOCS).as_posix()
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))
    space = {"__name__": "__page__"}
    for line, kind, code, shown in blocks(page):
        if kind == "python":
            printed = run_python("\n" * line + code, str(page), space)
        else:
            printed = run_shell(code)
        if shown is not None:
            assert printed.split() == shown.split(), f"{page}:{line}"


def test_blocks_are_found_and_a_wrong_one_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "<!-- not run: an example -->\n```sh\nfalse\n```\n\n```sh\nfalse\n```\n"
    )
    found = list(blocks(page))
    assert [(kind, shown) for _, kind, _, shown in found] == [("python", "1\n"), ("sh", None)]
    with pytest.raises(AssertionError):
        run_shell(found[1][2])


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text):
            place = (page.parent / target).resolve()
            if place.is_relative_to(DOCS / "gallery"):
                script = ROOT / "examples" / f"{place.name}.py"
                assert script.exists() or place.name == "index", f"{page}: {target}"
            else:
                assert any(place.with_suffix(s).exists() for s in (".md", ".rst")), target
        for target in re.findall(r"\]\(([^)#\s]+)\)|\{(?:image|include)\} (\S+)", text):
            path = next(filter(None, target))
            if not path.startswith(("http", "mailto")):
                assert (page.parent / path).exists(), f"{page}: {path}"


def test_every_page_is_reachable():
    join_names = set()
    for page in PAGES:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            for line in tree.splitlines():
                if line and not line.startswith(":"):
                    target = re.sub(r".*<(.+)>", r"\1", line.strip())
                    join_names.add((page.parent / target).resolve().with_suffix(".md"))
    lost = {page for page in PAGES if page.resolve() not in join_names} - {DOCS / "index.md"}
    assert not lost


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_have_a_title_and_are_in_order(script):
    text = script.read_text(encoding="utf-8")
    assert re.match(r'r?"""\n.+\n=+\n', text), "a gallery example starts with its title"
    with warnings.catch_warnings():
        warnings.simplefilter("error", SyntaxWarning)
        compile(text, str(script), "exec")
    order = (DOCS / "_ext" / "gallery.py").read_text(encoding="utf-8")
    assert f'"{script.name}"' in order, "say in docs/_ext/gallery.py where it belongs"
