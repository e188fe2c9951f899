"""Where our dependencies come from: ``python tools/supply.py hashes|lowest|sbom``.

hashes   write requirements/dev.txt, docs.txt and build.txt: the pins of constraints.txt with the
         SHA-256 of every wheel that the configured package index has for Python 3.11 to 3.14
lowest   print the lowest version of every dependency in pyproject.toml, but torch as pinned
sbom     print a CycloneDX document of the library and of what it needs, as installed here

torch has no hashes: the builds for CPUs and for CUDA have the same version and other files.
"""

import argparse
import json
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
BUILD = ["hatchling", "editables", "setuptools"]  # what an editable installation needs besides
# what `make wheel` needs besides hatchling, in an environment of its own
WHEEL = {"build": "1.6.1", "pyproject-hooks": "1.3.3", "tomlkit": "0.15.2"}
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
UNHASHED = "torch"
# what the lowest typer, matplotlib and scikit-learn go with: later ones warn of what these do
OF_THEIR_TIME = {"click": "8.2.1", "pyparsing": "3.2.0", "pytest": "8.4.2"}


def project() -> dict[str, Any]:
    """The table of the project in pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, Any] = tomllib.load(file)["project"]
    return found


def pins() -> dict[str, str]:
    """Versions in constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = dict(line.split("==") for line in lines if "==" in line)
    return {str(canonicalize_name(name)): version for name, version in found.items()}


def needed(names: list[str], known: dict[str, str]) -> set[str]:
    """These packages and all that they need, as installed here, as far as they are pinned."""
    found: set[str] = set()
    left = [Requirement(name) for name in names]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        key = f"{name}[{','.join(sorted(one.extras))}]"
        if name not in known or key in found:
            continue
        found |= {key, str(name)}
        for text in metadata.requires(name) or ():
            more = Requirement(text)
            extras = one.extras or {""}
            if more.marker is None or any(more.marker.evaluate({"extra": x}) for x in extras):
                left.append(more)
    return {name for name in found if "[" not in name}


# -- hashes ----------------------------------------------------------------------------------------


def wheel_hashes(known: dict[str, str]) -> dict[str, list[str]]:
    """SHA-256 of the wheels of each pin, from the index that pip is configured for.

    pip has no public function for this; it is the only use of its internals here.
    """
    from pip._internal.commands.download import DownloadCommand  # noqa: PLC0415
    from pip._internal.index.collector import parse_links  # noqa: PLC0415
    from pip._internal.models.link import Link  # noqa: PLC0415

    command = DownloadCommand("download", "")
    options, _ = command.parse_args([""])
    with command.main_context():
        finder = command._build_package_finder(options, command.get_default_session(options))
        collector = finder._link_collector

        def of(pin: tuple[str, str]) -> list[str]:
            name, version = pin
            found = set()
            for url in collector.search_scope.get_index_urls_locations(name):
                page = collector.fetch_response(Link(url)) if url.startswith("http") else None
                for link in parse_links(page) if page is not None else ():
                    if (
                        link.filename.endswith(".whl")
                        and link.hash
                        and _fits(link.filename, version)
                    ):
                        found.add(link.hash)
            return sorted(found)

        with ThreadPoolExecutor(8) as pool:
            return dict(zip(known, pool.map(of, known.items()), strict=True))


def _fits(file: str, version: str) -> bool:
    try:
        _, found, _, tags = parse_wheel_filename(file)
    except ValueError:  # names of old files
        return False
    fits = any(tag.interpreter in (*PYTHONS, "py3") or tag.abi == "abi3" for tag in tags)
    return str(found) == version and fits


def write_hashes() -> None:
    """Write requirements/dev.txt, docs.txt with what it has besides, and build.txt."""
    known, extras = pins(), project()["optional-dependencies"]
    hashed = wheel_hashes({name: at for name, at in (known | WHEEL).items() if name != UNHASHED})
    dev = needed([*project()["dependencies"], *extras["dev"], *BUILD], known) - {UNHASHED}
    docs = set(hashed) - dev - set(WHEEL)
    build = needed(["hatchling"], known) | set(WHEEL)
    for file, names in (("dev", dev), ("docs", docs), ("build", build)):
        lines = ["# Written by tools/supply.py hashes: do not edit."]
        for name in sorted(names):
            if not hashed[name]:
                raise SystemExit(f"no wheel of {name}=={known[name]} was found")
            lines.append(
                " \\\n    --hash=sha256:".join([f"{name}=={(known | WHEEL)[name]}", *hashed[name]])
            )
        path = ROOT / "requirements" / f"{file}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# -- lowest versions ---------------------------------------------------------------------------


def lowest() -> list[str]:
    """The lowest versions that are allowed, of what the library and its extras need."""
    extras = {
        name: needs
        for name, needs in project()["optional-dependencies"].items()
        if name not in ("dev", "docs", "peers")
    }
    found = {}
    for text in [*project()["dependencies"], *(one for needs in extras.values() for one in needs)]:
        one = Requirement(text)
        versions = [part.version for part in one.specifier if part.operator == ">="]
        if not versions:
            raise SystemExit(f"{text} in pyproject.toml has no lowest version")
        found[one.name] = versions[0]
    tools = [Requirement(text).name for text in project()["optional-dependencies"]["dev"]]
    found = {name: pins()[name] for name in tools if name in pins()} | OF_THEIR_TIME | found
    found[UNHASHED] = pins()[UNHASHED]  # the lowest would be a CUDA build of gigabytes
    return [f"{name}=={version}" for name, version in sorted(found.items())]


# -- bill of materials -------------------------------------------------------------------------


def sbom() -> dict[str, Any]:
    """A CycloneDX document: the library, what it needs, their licences and dependencies."""
    installed = {str(canonicalize_name(one.name)): "" for one in metadata.distributions()}
    names = needed(project()["dependencies"], installed)
    parts, edges = [], []
    for name in sorted(names):
        found = metadata.distribution(name)
        parts.append(_component(name, found))
        uses = sorted(_direct(found) & names)
        edges.append({"ref": _reference(name), "dependsOn": [*map(_reference, uses)]})
    version = metadata.version("fewer")
    own = {"type": "library", "bom-ref": f"pkg:pypi/fewer@{version}", "name": "fewer"}
    own |= {"version": version, "purl": f"pkg:pypi/fewer@{version}"}
    direct = sorted(canonicalize_name(Requirement(one).name) for one in project()["dependencies"])
    edges.append({"ref": own["bom-ref"], "dependsOn": [*map(_reference, direct)]})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own | {"licenses": [{"license": {"id": "MIT"}}]}},
        "components": parts,
        "dependencies": edges,
    }


def _reference(name: str) -> str:
    return f"pkg:pypi/{name}@{metadata.version(name)}"


def _direct(found: Any) -> set[str]:
    needs = [Requirement(text) for text in found.requires or ()]
    return {
        str(canonicalize_name(one.name))
        for one in needs
        if one.marker is None or one.marker.evaluate({"extra": ""})
    }


def _component(name: str, found: Any) -> dict[str, Any]:
    about = found.metadata
    part: dict[str, Any] = {"type": "library", "name": name, "version": found.version}
    part |= {"bom-ref": _reference(name), "purl": _reference(name)}
    if expression := about.get("License-Expression"):
        part["licenses"] = [{"expression": expression}]
    else:
        kinds = [x.split(" :: ")[-1] for x in about.get_all("Classifier") or () if "License" in x]
        text = kinds[:1] or re.findall(r"^[^\n]{1,60}$", about.get("License") or "")
        part |= {"licenses": [{"license": {"name": text[0]}}]} if text else {}
    return part


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["hashes", "lowest", "sbom"])
    what = parser.parse_args().what
    if what == "hashes":
        write_hashes()
    elif what == "lowest":
        print("\n".join(lowest()))
    else:
        json.dump(sbom(), sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
