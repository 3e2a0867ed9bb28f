"""The wheel alone, without a network: it is built, installed beside the dependencies that are here, and its
console is read page by page in a network namespace that has nothing but loopback."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VISIT = """
import re, signal, subprocess, sys, time, urllib.error, urllib.parse, urllib.request

siltstone, logs = sys.argv[1:]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
try:
    urllib.request.urlopen("http://192.0.2.1/", timeout=5)
except urllib.error.URLError as error:
    assert "unreachable" in str(error), error
else:
    raise AssertionError("there is a network")
flags = ["--create", "--engine=process", "--listen=http://127.0.0.1:8082", "--kafka-listen=none"]
with subprocess.Popen([siltstone, "serve", logs, *flags], stdout=subprocess.PIPE, text=True) as server:
    try:
        assert any(line.startswith("serving ") for line in server.stdout), "it did not start"
        form = urllib.parse.urlencode({"name": "users", "policy": "compact", "partitions": "1"}).encode()
        urllib.request.urlopen("http://127.0.0.1:8082/ui/new-topic", form, timeout=60).close()
        base, visited, waiting, kinds = "http://127.0.0.1:8082", {}, ["/ui/"], {}
        while waiting:
            path = waiting.pop()
            with urllib.request.urlopen(base + path, timeout=60) as answer:
                kind = answer.headers.get_content_type()
                text = answer.read().decode("utf-8", "replace")
            visited[path] = kind
            kinds[kind] = kinds.get(kind, 0) + 1
            links = []
            if kind == "text/html":
                links = re.findall(r'<(?:a|link|script|img|iframe)[^>]* (?:href|src)="([^"]*)"', text)
            if kind == "text/css":
                links = re.findall(r'(?:url\\(|@import )["\\']?([^"\\')]*)', text)
            for link in links:
                place = urllib.parse.urljoin(path, link.replace("&amp;", "&")).partition("#")[0]
                assert place.startswith("/"), (path, link)  # nothing is loaded from elsewhere
                if place not in visited and place not in waiting and "?" not in place:
                    waiting.append(place)
        files = (
            "htmx.min.js console.js plot.js console.css icon.svg uplot.min.js uplot.min.css".split()
        )
        missing = {f"/ui/static/{name}" for name in files} - {path.lower() for path in visited}
        assert not missing, (missing, sorted(visited))
        assert kinds["text/html"] > 15, visited
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
print("visited")
"""


def may_leave_the_network() -> bool:
    """May this process make a network namespace of its own?"""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not may_leave_the_network(), reason="a network namespace needs root, unshare and ip")
def test_the_console_of_the_wheel_needs_no_network(tmp_path: Path) -> None:
    isolated = [] if importlib.util.find_spec("hatchling") is None else ["--no-build-isolation"]
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolated]
    subprocess.run([*build, f"--wheel-dir={tmp_path}", str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("siltstone-*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    # The dependencies are those of the tests' environment, but not its Siltstone: a .pth file there is not
    # read.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = subprocess.run(
        [str(python), "-c", "import siltstone; print(siltstone.__file__)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert where.stdout.startswith(str(venv))
    visit = ["unshare", "--net", str(python), "-c", VISIT, str(venv / "bin" / "siltstone")]
    completed = subprocess.run(
        [*visit, str(tmp_path / "logs")],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.endswith("visited\n")
