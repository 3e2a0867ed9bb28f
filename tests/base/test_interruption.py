"""What a signal does to a command, without Spark: what is interrupted, what waits, what nothing delays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.base import interruption
from siltstone.base.interruption import InterruptHandler, is_interrupt

INT, TERM = signal.SIGINT, signal.SIGTERM
HEAD = """
import contextlib, os, signal, sys, threading, time
from siltstone.base.interruption import InterruptHandler, current

def say(line):
    sys.stderr.write(f"{line}\\n")
    sys.stderr.flush()

def send(number):
    os.kill(os.getpid(), number)

INT, TERM = signal.SIGINT, signal.SIGTERM
"""
INSTALLED = """
handler = InterruptHandler(grace_seconds=float(sys.argv[1]), print_line=say)
handler.install()
"""


def run(
    body: str, *, grace: float = 30, stdout: int = subprocess.PIPE, install: str = INSTALLED
) -> subprocess.CompletedProcess[str]:
    """A program with a handler for SIGINT, as a terminal's shell starts it."""
    return subprocess.run(
        [sys.executable, "-c", HEAD + install + body, str(grace)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize("number", [INT, TERM])
def test_the_main_thread_is_interrupted_once_after_its_critical_section(number: signal.Signals) -> None:
    completed = run(f"""
steps = []
try:
    with handler.critical():
        send({int(number)})
        time.sleep(0.05)
        steps.append("to its end")
except KeyboardInterrupt:
    with handler.critical():
        send({int(number)})
    send(INT)
    steps.append("cleared away")
print(steps, handler.was_signalled, handler.status)
try:
    handler.check()
except KeyboardInterrupt:
    print("nothing new is begun")
""")
    assert completed.stderr == "" and completed.stdout.splitlines() == [
        f"['to its end', 'cleared away'] True {128 + number}",
        "nothing new is begun",
    ]


@pytest.mark.parametrize(
    "blocked", ["with handler.critical():", "with contextlib.suppress(KeyboardInterrupt):"]
)
def test_no_blocked_call_delays_the_end_of_the_process(blocked: str) -> None:
    """A critical section that never ends, and an interrupt that somebody swallows."""
    completed = run(
        f"""
while True:
    {blocked}
        send(TERM)
        time.sleep(60)
""",
        grace=0.3,
    )
    assert (completed.returncode, completed.stderr.strip()) == (128 + TERM, interruption.INTERRUPTED_MESSAGE)


def test_a_blocked_reader_of_the_message_does_not_delay_the_end() -> None:
    completed = run(
        """
handler._print_line = lambda line: time.sleep(60)
threading.Thread(target=time.sleep, args=(60,)).start()
with contextlib.suppress(KeyboardInterrupt):
    send(INT)
    time.sleep(60)
""",
        grace=0.3,
    )
    assert completed.returncode == 128 + INT


def test_other_processes_end_before_files_are_removed() -> None:
    completed = run("""
order = []

def end():
    time.sleep(0.3)
    order.append("ended")

handler.on_signal(end)
try:
    send(INT)
    time.sleep(60)
except KeyboardInterrupt:
    with handler.critical():
        order.append("cleared away")
handler.on_signal(lambda: order.append("begun too late"))
print(order)
""")
    assert completed.stdout == "['ended', 'cleared away', 'begun too late']\n"


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As with ``nohup``, and in the background of a script."""
    completed = run(
        """
signal.signal(INT, signal.SIG_IGN)
other = InterruptHandler()
other.install()
send(INT)
print(signal.getsignal(INT) is signal.SIG_IGN, other.was_signalled, current() is other)
""",
        install="",
    )
    assert completed.stdout == "True False True\n"


def test_a_closed_output_pipe_is_no_error() -> None:
    """Python ends with 120 where the rest of standard output finds no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        completed = run(
            """
from siltstone.cli import main

def interrupted(arguments):
    sys.stdout.write("a line\\n")
    send(TERM)
    time.sleep(60)

main._run = interrupted
main.main()
""",
            stdout=writing,
            install="",
        )
    finally:
        os.close(writing)
    assert (completed.returncode, completed.stderr) == (
        143,
        f"siltstone: {interruption.INTERRUPTED_MESSAGE}\n",
    )


def test_a_full_output_pipe_is_no_error(tmp_path: Path) -> None:
    """The reader of standard output reads nothing, and the command waits to write."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HEAD
            + """
from siltstone.base import interruption
from siltstone.cli import main

interruption.InterruptHandler.__init__.__kwdefaults__["grace_seconds"] = 0.5

def writing(arguments):
    threading.Timer(0.3, send, (TERM,)).start()
    while True:
        sys.stdout.write("x" * 4096)

main._run = writing
main.main()
""",
            "30",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.communicate()


def test_without_a_command_nothing_is_installed() -> None:
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    quiet = interruption.current()
    quiet.check()
    quiet.wait_for_callbacks()
    quiet.on_signal(lambda: pytest.fail("no signal came"))
    assert not quiet.was_signalled and quiet.status == 130
    with pytest.raises(KeyboardInterrupt), InterruptHandler().critical():
        signal.raise_signal(INT)
        inside = [signal.getsignal(number) for number in interruption.SIGNALS]
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before != inside


def test_without_a_command_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(INT, signal.SIG_IGN)
    try:
        with InterruptHandler().critical():
            signal.raise_signal(INT)
        assert signal.getsignal(INT) is signal.SIG_IGN
    finally:
        signal.signal(INT, before)


def test_without_a_command_an_inner_section_defers_to_the_end_of_the_outer_one() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), InterruptHandler().critical():
        with InterruptHandler().critical():
            signal.raise_signal(INT)
        reached.append("after the inner section")
        signal.raise_signal(TERM)
        reached.append("the end of the outer section")
    assert len(reached) == 2


@pytest.mark.parametrize("is_at_end", [False, True])
def test_an_interrupt_between_two_handlers_leaves_none_of_a_section(
    monkeypatch: pytest.MonkeyPatch, is_at_end: bool
) -> None:
    """SIGINT comes when one of the section's two handlers is set, or set back. A handler of the section that
    stayed would swallow its signal for ever."""
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    set_handler, calls = signal.signal, list[int]()

    def set_and_interrupt(number: int, handler: object) -> object:
        calls.append(number)
        returned = set_handler(number, handler)  # type: ignore[arg-type]
        if len(calls) == (3 if is_at_end else 1):
            raise KeyboardInterrupt
        return returned

    monkeypatch.setattr(signal, "signal", set_and_interrupt)
    with pytest.raises(KeyboardInterrupt), InterruptHandler().critical():
        assert is_at_end
    monkeypatch.undo()
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before


def test_a_handler_that_python_does_not_know_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that C code has set: ``signal.getsignal`` returns None, which ``signal.signal`` refuses."""
    before = signal.getsignal(INT)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with InterruptHandler().critical():
        pass
    monkeypatch.undo()
    assert signal.getsignal(INT) is before


def test_a_late_callback_runs_once_and_its_error_is_suppressed() -> None:
    calls = []

    def fail() -> None:
        calls.append("late")
        raise OSError("the process has ended")

    handler = InterruptHandler()
    handler._signal_number = INT
    handler.on_signal(fail)
    handler._end_other_processes()
    assert calls == ["late"]


def test_an_error_that_replaces_an_interrupt_is_recognized() -> None:
    def job() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("the job was cancelled")

    with pytest.raises(OSError) as caught:
        job()
    assert is_interrupt(caught.value) and not is_interrupt(OSError("another one"))


@pytest.mark.parametrize("number", [INT, TERM])
def test_the_thread_ends_for_a_fork_and_a_signal_meanwhile_is_handled_afterwards(
    number: signal.Signals,
) -> None:
    completed = run(f"""
called = threading.Event()
handler.on_signal(called.set)
assert threading.active_count() == 2
try:
    with handler.without_thread():
        assert threading.active_count() == 1
        send({int(number)})
        print("not reached")
except KeyboardInterrupt:
    print(called.wait(30), handler.status)
""")
    assert (completed.stderr, completed.stdout) == ("", f"True {128 + number}\n")


def test_a_signal_just_before_a_fork_ends_the_process_all_the_same() -> None:
    completed = run(f"""
from siltstone.base import interruption
called = threading.Event()
handler.on_signal(called.set)
interruption._is_thread = lambda number: send({int(TERM)})
try:
    with handler.without_thread():
        print("not reached")
except KeyboardInterrupt:
    print(called.wait(10), threading.active_count() > 1)
""")
    assert (completed.stderr, completed.stdout) == ("", "True True\n")


def test_the_kernels_thread_has_ended_too_before_a_fork() -> None:
    completed = run("""
alone = 0
for _ in range(200):
    with handler.without_thread():
        alone += len(os.listdir("/proc/self/task")) == 1
print(alone)
""")
    assert (completed.stderr, completed.stdout) == ("", "200\n")


def test_a_signal_ends_a_fork_that_has_no_thread() -> None:
    completed = run(f"""
with handler.without_thread():
    pid = os.fork()
    if pid == 0:
        handler.uninstall()
        print(current().is_installed, flush=True)
        send({int(TERM)})
        os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), handler.is_installed, handler.was_signalled)
""")
    assert (completed.stderr, completed.stdout.splitlines()) == ("", ["False", f"-{int(TERM)} True False"])
