"""``fewer serve``: a panel as an HTTP service."""

from typing import Annotated

import typer

from fewer.cli import _options as opt
from fewer.cli._output import Output


def serve(
    output: Output,
    panel: opt.PanelArgument,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; by default, only programs on this machine can connect. "
            "There is neither authentication nor encryption."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 8000,
    most_rows: Annotated[int, typer.Option(help="Maximum number of rows per request.")] = 10_000,
    most_bytes: Annotated[
        int, typer.Option(help="Maximum size of a request in bytes.")
    ] = 10_000_000,
) -> None:
    """Serve a panel over HTTP, for programs that do not run Python.

    POST /reconstruct, /predict and /check accept and return JSON; / is a page for trying them
    out, and /openapi.json describes them. Press Ctrl-C to stop. Requires the extra serve.

    Examples: [bold]fewer serve panel/ --port 8000[/];
    [bold]curl localhost:8000/reconstruct -H 'Content-Type: application/json' -d
    '{"rows": [[1.5, null, 3]]}'[/]
    """
    from fewer.service import Limits
    from fewer.service import serve as run

    loaded = opt.load_panel(panel)

    def started(address: str) -> None:
        about = {"address": address, "panel": panel, "measured": loaded.k, "features": loaded.d}
        output.result(
            about,
            f"serving a panel of {loaded.k} of {loaded.d} features at [bold]{address}[/]; press "
            "Ctrl-C to stop",
        )

    limits = Limits(rows=most_rows, bytes=most_bytes)
    run(loaded, host=host, port=port, limits=limits, started=started)
