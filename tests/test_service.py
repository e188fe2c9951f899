"""The HTTP service, by requests to a real server on this machine."""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import pytest
from openapi_spec_validator import validate
from sklearn.datasets import load_breast_cancer, load_iris
from typer.testing import CliRunner

import fewer
from fewer.cli import app as commands
from fewer.errors import InputError
from fewer.service import Limits, create_app, serve
from fuzz.requests import malformed

uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
FRAME = load_breast_cancer(as_frame=True).data
QUICK = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}
JSON = {"Content-Type": "application/json"}
LIMITS = Limits(rows=50, bytes=20_000, seconds=1.0)


@contextlib.contextmanager
def running(panel, limits=LIMITS):
    """A server in a thread; its port."""
    config = uvicorn.Config(
        create_app(panel, limits), port=0, log_level="critical", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def panel():
    return fewer.select(FRAME[:300], 5, **QUICK)


@pytest.fixture(scope="module")
def port(panel):
    with running(panel) as found:
        yield found


@pytest.fixture(scope="module")
def classes():
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    panel = fewer.select(X, 2, target=names, **QUICK)
    with running(panel) as port:
        yield panel, X, port


def ask(port, path, body=None, headers=JSON, method=None):
    """Status, headers and parsed body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        kind = answer.headers["content-type"]
        found = json.loads(text) if kind == "application/json" else text
        return answer.status, answer.headers, found


def conforms(port, path, found, status=200):
    """Whether an answer is what the OpenAPI document says."""
    api = ask(port, "/openapi.json")[2]
    (about,) = api["paths"][path].values()
    schema = about["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema.validate(found, {**schema, "components": api["components"]})


def test_rows_by_name_come_back_by_name(panel, port):
    rows = FRAME[panel.features].iloc[300:303].to_dict("records")
    rows[1][panel.features[0]] = None
    status, _, found = ask(port, "/reconstruct", {"rows": rows})
    assert status == 200
    expected = panel.reconstruct(rows)
    assert [list(row) for row in found["rows"]] == [list(FRAME.columns)] * 3
    np.testing.assert_allclose(
        [list(row.values()) for row in found["rows"]],
        [list(row.values()) for row in expected],
        rtol=1e-12,
    )
    conforms(port, "/reconstruct", found)


def test_rows_in_order_come_back_in_order_with_bounds(panel, port):
    rows = FRAME[panel.features].to_numpy()[300:303]
    rows[2, 1:] = np.nan
    body = {"rows": [[None if np.isnan(x) else x for x in row] for row in rows], "interval": 0.8}
    status, _, found = ask(port, "/reconstruct", body)
    assert status == 200
    assert found["features"] == list(FRAME.columns)
    expected = panel.reconstruct(rows, interval=0.8)
    for title, part in zip(("rows", "lower", "upper"), expected, strict=True):
        np.testing.assert_allclose(found[title], part, rtol=1e-9)
    conforms(port, "/reconstruct", found)


def test_classes_are_predicted_with_sets_and_probabilities(classes):
    panel, X, port = classes
    rows = X[panel.features].iloc[:2].to_dict("records")
    body = {"rows": rows, "interval": 0.9, "probabilities": True}
    status, _, found = ask(port, "/predict", body)
    assert status == 200
    assert found["predictions"] == panel.predict(rows).tolist()
    assert all(one in found["sets"][at] for at, one in enumerate(found["predictions"]))
    assert sum(found["probabilities"][0].values()) == pytest.approx(1)
    conforms(port, "/predict", found)


def test_several_numbers_have_bounds_and_no_probabilities():
    X = load_iris().data
    both = {"length": X[:, 2], "width": X[:, 3]}
    panel = fewer.select(X[:, :2], 2, target=both, target_weight=[1, 2], **QUICK)
    body = {"rows": X[:2, :2].tolist(), "interval": 0.8}
    with running(panel) as port:
        status, _, found = ask(port, "/predict", body)
        for asked, message in (("yes", "must be true or false"), (True, "none of the targets is")):
            refused = ask(port, "/predict", body | {"probabilities": asked})
            assert refused[0] == 422
            assert message in refused[2]["error"]
    assert status == 200
    assert set(found) == {"target", "predictions", "lower", "upper"}
    expected = panel.predict(X[:2, :2], interval=0.8)
    for title, part in zip(("predictions", "lower", "upper"), expected, strict=True):
        np.testing.assert_allclose(found[title]["width"], part["width"], rtol=1e-9)


def test_several_targets_are_predicted_by_name():
    X, y = load_iris(return_X_y=True)
    both = {"kind": np.array(["a", "b", "c"])[y], "width": X[:, 3]}
    panel = fewer.select(X[:, :3], 2, target=both, **QUICK)
    rows = X[:2, :3][:, panel.indices]
    with running(panel) as port:
        body = {"rows": rows.tolist(), "interval": 0.8, "probabilities": True}
        status, _, found = ask(port, "/predict", body)
        conforms(port, "/predict", found)
    assert status == 200
    assert found["predictions"]["kind"] == ["a", "a"]
    assert found["lower"]["width"][0] < found["predictions"]["width"][0]
    assert found["sets"]["kind"][0][0] == "a"
    assert sum(found["probabilities"]["kind"][1].values()) == pytest.approx(1)


def test_numbers_are_predicted_with_bounds():
    X = load_iris().data
    panel = fewer.select(X[:, :3], 2, target=X[:, 3], **QUICK)
    rows = X[:2, :3][:, panel.indices]
    with running(panel) as port:
        body = {"rows": rows.tolist(), "interval": 0.8}
        status, _, found = ask(port, "/predict", body)
        conforms(port, "/predict", found)
        by_number = {str(j): 1.0 for j in panel.indices}  # features have no names
        assert list(ask(port, "/reconstruct", {"rows": [by_number]})[2]["rows"][0]) == list("012")
        assert ask(port, "/predict", body | {"probabilities": True})[0] == 422
    assert status == 200
    expected = panel.predict(rows, interval=0.8)
    np.testing.assert_allclose(
        [found[name] for name in ("predictions", "lower", "upper")], expected, rtol=1e-9
    )


def test_rows_are_checked(panel, port):
    rows = FRAME[panel.features].iloc[300:340].copy()
    status, _, found = ask(port, "/check", {"rows": rows.to_dict("records")})
    assert (status, found["ok"], found["rows"], len(found["per_row"])) == (200, True, 40, 40)
    conforms(port, "/check", found)
    rows[panel.features[0]] *= 1000
    found = ask(port, "/check", {"rows": rows.to_dict("records")})[2]
    assert not found["ok"]
    assert found["findings"][0]["feature"] == panel.features[0]
    conforms(port, "/check", found)


def test_the_description_is_valid_and_its_examples_work(classes, port):
    for at, paths in ((port, {"/reconstruct", "/check", "/health"}), (classes[2], {"/predict"})):
        status, headers, api = ask(at, "/openapi.json")
        assert (status, headers["content-type"]) == (200, "application/json")
        validate(api)
        assert paths <= set(api["paths"])
        for path, methods in api["paths"].items():
            for method, about in methods.items():
                content = about.get("requestBody", {}).get("content", {})
                body = content.get("application/json", {}).get("example")
                if body is not None:
                    schema = content["application/json"]["schema"]
                    jsonschema.validate(body, {**schema, "components": api["components"]})
                status, _, found = ask(at, path, body, method=method.upper())
                assert status == 200, (path, found)
                conforms(at, path, found)


def test_the_page_needs_nothing_from_elsewhere(port):
    status, headers, page = ask(port, "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    text = page.decode()
    for name in ("page.js", "page.css"):
        assert name in text
        status, _, part = ask(port, f"/{name}")
        assert status == 200
        text += part.decode()
    assert "http:" not in text
    assert "https:" not in text
    assert "//cdn" not in text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON that can be read"),
        (b"", 400, "not JSON that can be read"),
        (b"\xff\xfe\x00", 400, "not JSON that can be read"),
        ('{"rows": [[1, 2, 3, 4, NaN]]}', 400, "NaN, which is not finite"),
        ('{"rows": [[1, 2, 3, 4, 1e999]]}', 400, "not finite"),
        ('{"rows": [[1, 2, 3, 4, ' + "9" * 400 + "]]}", 400, "400 digits"),
        ('{"rows": ' + "[" * 9000 + "]" * 9000 + "}", 400, "levels"),
        ([1, 2], 422, 'an object with "rows"'),
        ({}, 422, '"rows" must be a list of one row or more'),
        ({"rows": []}, 422, '"rows" must be a list of one row or more'),
        ({"rows": {"a": 1}}, 422, '"rows" must be a list'),
        ({"rows": [[1, 2]]}, 422, "row 0 has 2 values; give 5, in this order: "),
        ({"rows": [[1, 2, 3, 4, "5"]]}, 422, 'is "5", not a number or null'),
        ({"rows": [[1, 2, 3, 4, 5], {"a": 1}]}, 422, "row 1 is neither an object nor an array"),
        ({"rows": [{"a": 1}]}, 422, "measured lacks 5 of the 5 chosen features"),
        ({"rows": [[1] * 5], "path": "/etc/passwd"}, 422, "unknown: 'path'; known here: 'rows'"),
        ({"rows": "/etc/passwd"}, 422, '"rows" must be a list'),
        ({"rows": ["/etc/passwd"]}, 422, "row 0 is neither an object nor an array"),
        ({"rows": [[1] * 5], "interval": 2}, 422, "interval=2 must be above 0 and at most 0.99"),
        ({"rows": [[1] * 5], "interval": "x"}, 422, '"interval" must be a number'),
        ({"rows": [[1] * 5] * 51}, 413, "51 rows; at most 50 per request"),
        (b" " * 20_001, 413, "more than 20,000 bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(port, body, status, message):
    found = ask(port, "/reconstruct", body)
    assert (found[0], list(found[2])) == (status, ["error"])
    assert message in found[2]["error"]
    assert "Traceback" not in found[2]["error"]
    conforms(port, "/reconstruct", found[2], status)


def test_wrong_paths_methods_types_and_hosts_are_refused_as_json(port):
    for path, method, headers, status in (
        ("/nothing", "GET", {}, 404),
        ("/reconstruct/../../etc/passwd", "GET", {}, 404),
        ("/page/%2e%2e/app.py", "GET", {}, 404),
        ("/reconstruct", "GET", {}, 405),
        ("/health", "DELETE", {}, 405),
        ("/health", "GET", {"Host": "example.org"}, 400),
        ("/health", "GET", {"Host": f"localhost:{port}"}, 200),
        ("/health", "GET", {"Host": f"[::1]:{port}"}, 200),
    ):
        found = ask(port, path, headers=headers, method=method)
        assert found[0] == status, path
        assert "error" in found[2] or status == 200
    assert ask(port, "/predict", {"rows": [[1] * 5]})[2]["error"].startswith("this panel predicts")
    # a form of another site can send this without asking first
    found = ask(port, "/reconstruct", '{"rows": [[1, 2, 3, 4, 5]]}', {"Content-Type": "text/plain"})
    assert (found[0], found[2]["error"][:9]) == (415, "send JSON")


def test_a_claimed_length_and_a_slow_client_are_refused(port):
    head = b"POST /reconstruct HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for rest, status in ((b"Content-Length: 99999999999", 413), (b"", 413)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            chunks = b"4e21\r\n" + b" " * 20_001 + b"\r\n"  # chunked, without its end
            more = b"\r\n\r\n" if rest else b"Transfer-Encoding: chunked\r\n\r\n" + chunks
            client.sendall(head + rest + more)
            assert int(client.recv(4096).split()[1]) == status
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(head + b'Content-Length: 100\r\n\r\n{"rows"')
        assert int(client.recv(4096).split()[1]) == 408


def test_a_bug_is_an_answer_without_a_traceback(panel, port, monkeypatch):
    def broken(values, interval=None):
        raise RuntimeError("secret path")

    monkeypatch.setattr(type(panel.reconstructor), "parts", lambda *given: broken(given))
    status, _, found = ask(port, "/reconstruct", {"rows": [[1] * 5]})
    assert (status, found) == (500, {"error": "internal error; see the log of the service"})


def test_many_requests_at_once_get_the_answers_of_one(panel, port):
    rows = FRAME[panel.features].to_numpy()[300:320]
    rows[::3, 1] = np.nan
    bodies = [
        json.dumps({"rows": [[None if np.isnan(x) else x for x in row]], "interval": 0.9})
        for row in rows
    ]
    alone = [ask(port, "/reconstruct", body)[2] for body in bodies]
    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(lambda at: ask(port, "/reconstruct", bodies[at % 20]), range(200)))
    assert [status for status, _, _ in found] == [200] * 200
    assert all(one[2] == alone[at % 20] for at, one in enumerate(found))


def test_malformed_requests_never_break_it(panel, port):
    rng = random.Random(0)
    good = {"rows": [dict.fromkeys(panel.features, 1.0)], "interval": 0.9}
    for _ in range(120):
        path = rng.choice(["/reconstruct", "/check", "/predict"])
        status, _, found = ask(port, path, malformed(good, rng))
        assert status in (200, 400, 404, 413, 422), found
        assert status == 200 or list(found) == ["error"]
    assert ask(port, "/health")[0] == 200


def test_wide_answers_have_fewer_rows(panel, monkeypatch):
    monkeypatch.setattr("fewer.service.app.VALUES", 100)
    with running(panel, Limits()) as port:
        assert ask(port, "/health")[2]["limits"]["rows"] == 3
        found = ask(port, "/reconstruct", {"rows": [[1] * 5] * 4})
        assert (found[0], found[2]["error"]) == (413, "4 rows; at most 3 per request")


def test_limits_and_addresses_are_checked(panel, port):
    with pytest.raises(InputError, match="rows=0 must be a whole number"):
        Limits(rows=0)
    with pytest.raises(InputError, match=f"port={port}: cannot listen there.*choose another port"):
        serve(panel, port=port)
    with pytest.raises(InputError, match="port=70000 must be a whole number"):
        serve(panel, port=70_000)


def test_the_command_serves_and_ends(panel, tmp_path):
    panel.save(tmp_path / "panel")
    code = "from fewer.cli import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(tmp_path / "panel"), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        text=True,
    )
    text = ""
    while not text.rstrip().endswith("}"):
        text += server.stdout.readline()
    address = json.loads(text)["address"]
    assert address.startswith("http://127.0.0.1:")
    assert ask(int(address.rpartition(":")[2]), "/health")[2]["status"] == "ok"
    server.send_signal(signal.SIGINT)
    _, said = server.communicate(timeout=120)
    assert (server.returncode, said) == (0, "")


def test_the_command_refuses_a_missing_panel(tmp_path):
    done = CliRunner().invoke(commands, ["serve", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "there is no panel" in done.output


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_in_a_browser(panel, port):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    said = []
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#form input")
        assert page.locator("#form input").count() == panel.k
        page.fill("#form input >> nth=0", "0.1")
        page.click("text=Reconstruct all features >> nth=0")
        page.wait_for_selector("#result table")
        assert page.locator("#result tr").count() == panel.d + 1
        page.click("text=Check rows >> nth=0")
        page.wait_for_selector("#result p")
        page.fill("#form input >> nth=0", "abc")
        page.click("text=Check rows >> nth=0")
        page.wait_for_selector("#result .error")
        browser.close()
    assert said == []
