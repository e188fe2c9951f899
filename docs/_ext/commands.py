"""``{command}`` directive: arguments and options of a command, read from the program itself."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from fewer.cli import app as program

KINDS = {"str": "text", "int": "number", "float": "number", "Path": "path", "bool": ""}
COMMON = ("--json", "--quiet", "--debug", "--help")
READING = "Reading data"  # the same in every command, so described once


def plain(text: str) -> str:
    """Help without the markup of the terminal."""
    return re.sub(r"\[/?[a-z ]*\]", "", text)


class Command(Directive):
    """Purpose, usage and one table of options for each panel of the help."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Read the command that the argument names."""
        name = self.arguments[0]
        commands: dict[str, Any] = typer.main.get_command(program).commands  # type: ignore[attr-defined]
        if name not in commands:
            raise self.error(f"fewer has no command {name!r}; it has {', '.join(commands)}")
        command = commands[name]
        arguments = [p for p in command.params if not p.opts[0].startswith("-")]
        options = [p for p in command.params if p.opts[0].startswith("-")]
        usage = " ".join(
            ["fewer", name, *(p.name if p.required else f"[{p.name}]" for p in arguments)]
        )
        purpose = plain(command.help).partition("\n\nExample")[0]
        found: list[nodes.Node] = [
            nodes.paragraph(text=" ".join(part.split())) for part in purpose.split("\n\n")
        ]
        found.append(nodes.literal_block(text=f"{usage} [options]", language="text"))
        panels: dict[str, list[Any]] = {"Arguments": arguments, "Options": []}
        for option in options:
            if option.opts[0] not in COMMON and option.rich_help_panel != READING:
                panels.setdefault(option.rich_help_panel or "Options", []).append(option)
        for title, members in panels.items():
            if members:
                found += [nodes.rubric(text=title), _table(members)]
        if any(option.rich_help_panel == READING for option in options):
            found.append(nodes.paragraph(text="Also accepts the options of Reading data, above."))
        return found


class ReadingOptions(Directive):
    """The options for reading data, which several commands share."""

    def run(self) -> list[nodes.Node]:
        """One list."""
        commands: dict[str, Any] = typer.main.get_command(program).commands  # type: ignore[attr-defined]
        options = commands["inspect"].params
        return [_table([one for one in options if getattr(one, "rich_help_panel", "") == READING])]


class ExitCodes(Directive):
    """The exit codes, as ``fewer --help`` gives them."""

    def run(self) -> list[nodes.Node]:
        """One paragraph."""
        return [nodes.paragraph(text=plain(str(program.info.epilog)))]


def _table(members: list[Any]) -> nodes.definition_list:
    return nodes.definition_list("", *_items(members), classes=["options"])


def _items(members: list[Any]) -> Iterator[nodes.definition_list_item]:
    for one in members:
        names = ", ".join([*one.opts, *one.secondary_opts])
        term = nodes.term("", "", nodes.literal(text=names))
        kind = _kind(one)
        if kind:
            term += nodes.inline(text=f" {kind}", classes=["kind"])
        text = plain(one.help or "")
        if one.opts[0].startswith("-") and one.default not in (None, False, [], ""):
            text += f" Default: {one.default}."
        body = nodes.definition("", nodes.paragraph(text=text))
        yield nodes.definition_list_item("", term, body)


def _kind(one: Any) -> str:
    annotation = str(getattr(one.type_descriptor, "annotation", ""))
    found = re.search(r"str|int|float|Path|bool", annotation)
    return KINDS[found[0]] if found else ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directives known."""
    app.add_directive("command", Command)
    app.add_directive("exit-codes", ExitCodes)
    app.add_directive("reading-options", ReadingOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
