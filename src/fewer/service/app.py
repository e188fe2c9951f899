"""The service: an ASGI application around a panel, and a server for it.

Nothing that a client sends names a file, is evaluated, or decides how much memory is taken before
it is counted. An answer is JSON; so is every error, which is one sentence.
"""

import asyncio
import json
import math
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer import __version__
from fewer._checks import check_number, check_whole, join_names
from fewer._optional import import_optional
from fewer._stored import parse_json
from fewer.errors import FewerError, InputError
from fewer.panel import Panel
from fewer.rows import read_rows
from fewer.service.openapi import document

__all__ = ["Limits", "create_app", "serve"]

VALUES = 2_000_000  # numbers in an answer, about 40 MB of JSON
PAGE = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# the page asks nobody but this service, and runs nothing but its own script
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
ANYWHERE = ("0.0.0.0", "::", "")
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Limits:
    """What a service accepts.

    Attributes
    ----------
    rows : int
        Rows of a request; fewer where an answer would have more than two million numbers.
    bytes : int
        Size of a request.
    seconds : float
        Time that a client may take to send a request.
    requests : int
        Requests that are worked on at a time; others wait.

    Examples
    --------
    >>> Limits(rows=100)
    Limits(rows=100, bytes=10000000, seconds=30.0, requests=4)
    """

    rows: int = 10_000
    bytes: int = 10_000_000
    seconds: float = 30.0
    requests: int = 4

    def __post_init__(self) -> None:
        for name in ("rows", "bytes", "requests"):
            check_whole(name, getattr(self, name))
        check_number("seconds", self.seconds, above=0)


class Refused(Exception):
    """A request that is answered with an error: its status and one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_app(panel: Panel, limits: Limits | None = None, *, hosts: tuple[str, ...] = ()) -> Any:
    """An ASGI application that reconstructs, predicts and checks rows with a panel.

    ``GET /`` is a page to try it, ``GET /openapi.json`` describes it, and ``GET /health`` says
    that it runs. ``POST /reconstruct``, ``/predict`` and ``/check`` take JSON: ``{"rows": [...]}``,
    each row an object by feature name or an array in the order of ``panel.features``, with null
    for what was not measured.

    Parameters
    ----------
    panel : Panel
        From `fewer.select` or `fewer.Panel.load`.
    limits : Limits, default=None
        Size of requests; ``Limits()`` if None.
    hosts : tuple of str, default=()
        Names under which clients may call it besides this machine's own, against pages that
        point a name of theirs to this machine; ``("*",)`` for any.

    Returns
    -------
    starlette.applications.Starlette
        For `serve`, or any ASGI server.

    Examples
    --------
    >>> import fewer
    >>> from fewer.service import create_app
    >>> from sklearn.datasets import load_iris
    >>> panel = fewer.select(load_iris().data, 2, strategies=["search"], random_state=0)
    >>> [route.path for route in create_app(panel).routes][:3]
    ['/reconstruct', '/check', '/health']
    """
    applications = import_optional("starlette.applications")
    routing = import_optional("starlette.routing")
    service = _Service(panel, limits or Limits())
    answers = {"/reconstruct": service.reconstruct, "/check": service.check}
    if panel.target is not None:
        answers["/predict"] = service.predict
    routes = [
        routing.Route(path, partial(service.post, work), methods=["POST"])
        for path, work in answers.items()
    ]
    shown = document(panel, service.most_rows, service.limits.bytes)
    about = {"/health": service.health(), "/openapi.json": shown}
    routes += [
        routing.Route(path, partial(_get, content=_encoded(found), kind="application/json"))
        for path, found in about.items()
    ]
    page = files("fewer.service") / "page"
    for path, name in PAGE.items():
        content, kind = (page / name).read_bytes(), KINDS[os.path.splitext(name)[1]]
        routes.append(routing.Route(path, partial(_get, content=content, kind=kind)))
    middleware = import_optional("starlette.middleware")
    exceptions = import_optional("starlette.exceptions")
    return applications.Starlette(
        routes=routes,
        middleware=[middleware.Middleware(_KnownHosts, known=(*LOCAL, *hosts))],
        exception_handlers={
            exceptions.HTTPException: partial(_not_there, has_target=panel.target is not None),
            Exception: _failed,
        },
    )


class _KnownHosts:
    """Refuses requests for other names: a page elsewhere could point one to this machine."""

    def __init__(self, app: Any, known: tuple[str, ...]) -> None:
        self.app, self.known = app, known

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and "*" not in self.known:
            host = dict(scope["headers"]).get(b"host", b"").decode("latin1")
            name = re.sub(r":\d*$", "", host).strip("[]").lower()
            if name not in self.known:
                message = f"unknown host {host[:100]!r}; call the service as it was started"
                await _response(_encoded({"error": message}), 400)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _get(request: Any, content: bytes, kind: str) -> Any:
    return _response(content, kind=kind)


async def _not_there(request: Any, error: Any, has_target: bool) -> Any:
    message = {
        404: f"there is no {request.url.path[:100]}; see / or /openapi.json",
        405: f"{request.method[:20]} is not possible here; see / or /openapi.json",
    }.get(error.status_code, str(error.detail))
    if request.url.path == "/predict" and not has_target:
        message = "this panel predicts no target; make one with fewer select --target"
    return _response(_encoded({"error": message}), error.status_code, headers=error.headers)


async def _failed(request: Any, error: Exception) -> Any:
    # what happened is in the log of the server, not in the answer
    return _response(_encoded({"error": "internal error; see the log of the service"}), 500)


def _response(
    content: bytes,
    status: int = 200,
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
) -> Any:
    responses = import_optional("starlette.responses")
    return responses.Response(content, status, SAFE | (headers or {}), media_type=kind)


def _encoded(found: Any) -> bytes:
    return json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class _Service:
    """What the routes do: each takes a parsed body and returns what is sent as JSON."""

    def __init__(self, panel: Panel, limits: Limits) -> None:
        self.panel, self.limits = panel, limits
        self.keys = [str(name) for name in panel.features]
        names: list[Any] = panel.names or list(range(panel.d))
        self.names = [str(name) for name in names]
        self.most_rows = max(1, min(limits.rows, VALUES // panel.d))
        self.free = asyncio.Semaphore(limits.requests)

    def health(self) -> dict[str, Any]:
        """What the service is."""
        panel = self.panel
        return {
            "status": "ok",
            "fewer": __version__,
            "features": self.keys,
            "reconstructs": panel.d,
            "target": None if panel.target is None else (panel.target.name or "target"),
            "limits": {"rows": self.most_rows, "bytes": self.limits.bytes},
        }

    # -- requests --------------------------------------------------------------------------

    async def post(self, work: Callable[[dict[str, Any]], Any], request: Any) -> Any:
        """Read a request within its limits, and let a thread answer it."""
        try:
            body = await self._body(request)
            async with self.free:
                answer = await asyncio.to_thread(self._answer, work, body)
            return _response(answer)
        except Refused as error:
            # the rest of a body that was not read cannot be told from another request
            headers = {"Connection": "close"} if error.status in (408, 413) else None
            return _response(_encoded({"error": str(error)}), error.status, headers=headers)

    async def _body(self, request: Any) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "send JSON, with the header Content-Type: application/json")
        most = self.limits.bytes
        too_large = Refused(413, f"the request has more than {most:,} bytes; send fewer rows")
        claimed = request.headers.get("content-length", "0")
        if not claimed.isdecimal() or int(claimed[:20]) > most:
            raise too_large
        found = bytearray()
        disconnected = import_optional("starlette.requests").ClientDisconnect
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    found += part
                    if len(found) > most:
                        raise too_large
        except TimeoutError:
            seconds = self.limits.seconds
            raise Refused(408, f"the request did not arrive within {seconds:g} seconds") from None
        except disconnected:
            raise Refused(400, "the connection was closed before the request arrived") from None
        return bytes(found)

    def _answer(self, work: Callable[[dict[str, Any]], Any], body: bytes) -> bytes:
        try:
            asked = parse_json(body)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise Refused(400, f"the request is not JSON that can be read ({reason})") from None
        if not isinstance(asked, dict):
            raise Refused(422, 'send an object with "rows", such as {"rows": [[1.5, null]]}')
        try:
            return _encoded(work(asked))
        except FewerError as error:
            raise Refused(422, " ".join(str(error).split())) from error

    def _rows(self, asked: dict[str, Any], *known: str) -> Any:
        """The rows of a request: objects, or lists of k numbers; other keys are refused."""
        other = [key for key in asked if key not in ("rows", *known)]
        if other:
            raise Refused(
                422,
                f"unknown: {join_names([key[:40] for key in other])}; known here: "
                f"{join_names(['rows', *known])}",
            )
        rows = asked.get("rows")
        if not isinstance(rows, list) or not rows:
            raise Refused(422, '"rows" must be a list of one row or more')
        if len(rows) > self.most_rows:
            raise Refused(413, f"{len(rows):,} rows; at most {self.most_rows:,} per request")
        if all(isinstance(row, dict) for row in rows):
            return read_rows(self.panel.reconstructor, rows)
        for at, row in enumerate(rows):
            if not isinstance(row, list):
                raise Refused(422, f"row {at} is neither an object nor an array as the others are")
            if len(row) != len(self.keys):
                raise Refused(
                    422,
                    f"row {at} has {len(row)} values; give {len(self.keys)}, in this order: "
                    f"{join_names(self.keys, 8, quoted=False)}",
                )
            for name, value in zip(self.keys, row, strict=True):
                if value is not None and not isinstance(value, (int, float)):
                    shown = json.dumps(value)[:40]
                    raise Refused(422, f"row {at}: {name!r} is {shown}, not a number or null")
        return read_rows(self.panel.reconstructor, np.array(rows, dtype=np.float64))

    # -- answers ---------------------------------------------------------------------------

    def reconstruct(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All features of rows, and their bounds."""
        rows = self._rows(asked, "interval")
        interval = _interval(asked)
        parts = self.panel.reconstructor.parts(rows.values, interval)
        found = {
            title: [dict(zip(self.names, row, strict=True)) for row in _plain(part)]
            if isinstance(rows.given, list)
            else _plain(part)
            for title, part in zip(("rows", "lower", "upper"), parts, strict=False)
        }
        return found if isinstance(rows.given, list) else {"features": self.names, **found}

    def predict(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The target of rows: numbers with bounds, or classes with sets and probabilities."""
        rows = self._rows(asked, "interval", "probabilities")
        panel, target, interval = self.panel, self.panel.target, _interval(asked)
        assert target is not None
        wanted = asked.get("probabilities", False)
        if not isinstance(wanted, bool):
            raise Refused(422, '"probabilities" must be true or false')
        answer: dict[str, Any] = {"target": target.name or "target"}
        if target.parts:
            return answer | self._several(rows.values, interval, wanted)
        if target.classes is None:
            if wanted:
                raise Refused(422, f"a target of kind {target.kind.name} has no probabilities")
            found = panel.predict(rows.values, interval=interval)
            parts = (found,) if interval is None else found
            titles = ("predictions", "lower", "upper")
            return answer | {
                title: _plain(part) for title, part in zip(titles, parts, strict=False)
            }
        answer["predictions"] = panel.predict(rows.values).tolist()
        if interval is not None:
            sets = panel.predict_set(rows.values, interval)
            answer["sets"] = [target.classes[row].tolist() for row in sets]
        if wanted:
            labels = [str(label) for label in target.classes]
            chances = _plain(panel.predict_proba(rows.values))
            answer["probabilities"] = [dict(zip(labels, row, strict=True)) for row in chances]
        return answer

    def _several(self, values: Any, interval: float | None, wanted: bool) -> dict[str, Any]:
        """Several targets by name, each as it is by itself."""
        panel = self.panel
        assert panel.target is not None
        classes = {
            part.name: part.kind.classes
            for part in panel.target.parts
            if part.kind.classes is not None
        }
        if wanted and not classes:
            raise Refused(422, "none of the targets is of classes, which have probabilities")
        found = panel.predict(values, interval=interval)
        parts = (found,) if interval is None else found
        answer: dict[str, Any] = {
            title: {name: _labels(own) for name, own in part.items()}
            for title, part in zip(("predictions", "lower", "upper"), parts, strict=False)
        }
        if interval is not None and classes:
            sets = panel.predict_set(values, interval)
            answer["sets"] = {
                name: [labels[row].tolist() for row in sets[name]]
                for name, labels in classes.items()
            }
        if wanted:
            chances = panel.predict_proba(values)
            answer["probabilities"] = {
                name: [
                    dict(zip(map(str, labels), row, strict=True)) for row in _plain(chances[name])
                ]
                for name, labels in classes.items()
            }
        return answer

    def check(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What is off with rows, and how far each is from those of training."""
        found = self.panel.check(self._rows(asked).values)
        per_row = zip(
            *(_plain(part) for part in (found.distance, found.p, found.expected_error)), strict=True
        )
        titles = ("distance", "p", "expected_error")
        about = _finite(found.describe()) | {"summary": found.summary()}
        return about | {"per_row": [dict(zip(titles, row, strict=True)) for row in per_row]}


def _interval(asked: dict[str, Any]) -> float | None:
    value = asked.get("interval")
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise Refused(422, '"interval" must be a number such as 0.9, or null')
    return value


def _labels(found: Any) -> Any:
    """Predictions as JSON: numbers, or labels of classes."""
    return _plain(found) if found.dtype.kind == "f" else found.tolist()


def _plain(values: NDArray) -> Any:
    """Lists of numbers, with None where they are not finite."""
    whole = np.isfinite(values)
    if whole.all():
        return values.tolist()
    found = values.astype(object)
    found[~whole] = None
    return found.tolist()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- a server ----------------------------------------------------------------------------------


def serve(
    panel: Panel,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    started: Callable[[str], None] = print,
) -> None:
    """Run the service until it is interrupted (Ctrl-C).

    Parameters
    ----------
    panel : Panel
        From `fewer.select` or `fewer.Panel.load`.
    host : str, default="127.0.0.1"
        The address to listen at: by default only programs on this machine can call it. There is
        no password and no encryption: put a proxy in front of it before others can.
    port : int, default=8000
        0 for any free one.
    limits : Limits, default=None
        Size of requests; ``Limits()`` if None.
    started : callable, default=print
        Called with the address once it is open.

    Examples
    --------
    >>> import inspect
    >>> from fewer.service import serve
    >>> inspect.signature(serve).parameters["host"].default
    '127.0.0.1'
    """
    uvicorn = import_optional("uvicorn")
    check_whole("port", port, 0, 65_535)
    limits = limits or Limits()
    app = create_app(panel, limits, hosts=("*",) if host in ANYWHERE else (host,))
    with _listening(host, port) as opened:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=2**16,
            http="h11",
            ws="none",
            lifespan="off",
        )
        name = f"[{host}]" if ":" in host else host
        started(f"http://{name}:{opened.getsockname()[1]}")
        with suppress(KeyboardInterrupt):  # which uvicorn raises again once all is answered
            uvicorn.Server(config).run(sockets=[opened])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or the reason why there is none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((host, port))
            opened.listen(1024)
        except BaseException:
            opened.close()
            raise
        return opened
    except OSError as error:
        raise InputError(
            f"host={host!r}, port={port}: cannot listen there ({error.strerror or error}); choose "
            "another port, or 0 for any free one"
        ) from error
