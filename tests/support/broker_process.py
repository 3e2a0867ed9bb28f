"""`siltstone serve` as a broker in a process of its own, which may be killed and starts again on its port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_SECONDS = 60


class BrokerProcess:
    """A broker over ``directory``; a context that starts and kills it.

    ``flags``: of ``siltstone serve``; ``environment``: of the process, None: this one's.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *,
        flags: Sequence[str] = ("--engine", "process"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self._flags, self._environment = directory, flags, environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.bootstrap = f"127.0.0.1:{free.getsockname()[1]}"
        lines = {**settings, "log.dirs": str(directory), "listeners": f"PLAINTEXT://{self.bootstrap}"}
        self._properties = directory.with_name(f"{directory.name}.properties")
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._errors = directory.with_name(f"{directory.name}.stderr")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    @property
    def errors(self) -> str:
        """What it wrote to standard error, in all its lives."""
        return self._errors.read_text()

    def start(self) -> None:
        """Start it; it answers when this returns."""
        command = [sys.executable, "-m", "siltstone", "serve", "--config", str(self._properties)]
        command += [*self._flags, "--listen", "http://127.0.0.1:0"]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=self._environment
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"PLAINTEXT://" in line:
                return
        raise AssertionError(f"the broker did not start:\n{self.errors}")

    def kill(self) -> None:
        """SIGKILL: what it has written stays as it is."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and the end that it brings."""
        code = self._end(signal.SIGTERM)
        assert code in (0, 143, -signal.SIGTERM), f"exit code {code}\n{self.errors}"

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None and self._process.poll() is None, self.errors
        process, self._process = self._process, None
        process.send_signal(number)
        process.communicate(timeout=STOP_SECONDS)
        return process.returncode
