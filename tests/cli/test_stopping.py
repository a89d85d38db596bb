"""Commands that are told to end in the middle: nothing raw stays behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from support.commands import PRIVATIZE

import labelguard as lg

PATIENCE = 60
ROW = b'{"labeler_id": "u", "prompt": "p", "response_a": "a", "response_b": "b", "label": 1}\n'
RELEASE = (*PRIVATIZE, "--epsilon", "3", "--delta", "1e-5")


@pytest.fixture
def temporary(tmp_path):
    directory = tmp_path / "tmp"
    directory.mkdir()
    return directory


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "project")


def _heeded():
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def reading(temporary, within, *arguments):
    """A command in the middle of its standard input, which it keeps somewhere `within`."""
    command = [sys.executable, "-m", "labelguard", *arguments]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=_heeded,  # tests may run where hanging up is ignored
    ) as process:
        assert process.stdin is not None
        process.stdin.write(ROW * 20_000)  # more than a pipe and a buffer hold
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        while not kept(within):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()  # nothing happens if it has ended


def kept(directory):
    """Files in which rows of the input are."""
    found = []
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # it may just have been removed
            if path.is_file() and ROW in path.read_bytes():
                found.append(path)
    return found


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_was_read_of_standard_input_goes_with_the_command(number, temporary):
    with reading(temporary, temporary, "inspect", "-") as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert b"stopped; to finish, run it again: labelguard inspect -" in errors
    assert not list(temporary.iterdir())


def test_a_release_keeps_standard_input_in_its_project_alone(temporary, project):
    arguments = (*RELEASE, "-", "--project", str(project.state))
    with reading(temporary, project.state, *arguments) as process:
        assert not kept(temporary)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert not kept(project.state) and not list(temporary.iterdir())


@pytest.mark.slow
def test_what_a_killed_release_kept_of_standard_input_goes_with_the_next_job(temporary, project):
    arguments = (*RELEASE, "-", "--project", str(project.state))
    with reading(temporary, project.state, *arguments) as process:
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert kept(project.state) and not list(temporary.iterdir())
    with pytest.raises(lg.errors.InvalidLabels):
        lg.privatize("none.jsonl", mechanism="rr", epsilon=3, delta=1e-5, project=project)
    assert not kept(project.state)


def test_an_ignored_signal_stays_ignored():
    code = (
        "import os, signal; from labelguard.cli.terminal import handle_stop_signals\n"
        "with handle_stop_signals(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('still here')"
    )
    found = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, code], capture_output=True
    )
    assert found.stdout == b"still here\n", found.stderr
