"""What is printed for schedulers is what they read, and starts the job."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from croniter import croniter
from support.job_projects import Desk, desk
from support.pages import check_command

from labelguard.cli.main import main
from labelguard.errors import LabelguardError
from labelguard.jobs.schedulers import configuration

ROOT = Path(__file__).parents[2]
NAME = "labelguard-nightly-1-x"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """In a directory whose name shells and schedulers read in their own ways."""
    return desk(tmp_path_factory.mktemp("schedules") / '50% of $HOME "it\'s"')


def test_a_line_of_cron_runs_the_job_every_night(odd: Desk) -> None:
    [text] = configuration("cron", odd.job, at="02:30").files.values()
    *fields, command = text.rstrip("\n").split(" ", 5)
    assert croniter.is_valid(" ".join(fields))
    found = croniter(" ".join(fields), datetime(2026, 3, 3)).get_next(datetime)
    assert found == datetime(2026, 3, 3, 2, 30)
    assert "%" not in command.replace("\\%", "")  # cron ends a command there
    words = shlex.split(command.replace("\\%", "%"))
    check_command(words[words.index("retrain") :])
    assert str(odd.job) in words and str(odd.path) in words


def test_a_line_of_cron_runs_the_job_every_week(odd: Desk) -> None:
    [text] = configuration("cron", odd.job, at="Sun 04:00").files.values()
    found = croniter(" ".join(text.split(" ")[:5]), datetime(2026, 3, 3)).get_next(datetime)
    assert (found, found.strftime("%a")) == (datetime(2026, 3, 8, 4, 0), "Sun")


def faults(files: Mapping[str, str], here: Path) -> list[str]:
    """What systemd finds wrong with units of these names."""
    for name, text in files.items():
        (here / name).write_text(text)
    command = ["systemd-analyze", "verify", "--user", "--man=no", *(str(here / n) for n in files)]
    own = os.environ | {"XDG_RUNTIME_DIR": str(here), "HOME": str(here)}
    found = subprocess.run(command, capture_output=True, text=True, env=own)
    assert "Failed to initialize" not in found.stderr, found.stderr
    return [line for line in found.stderr.splitlines() if "labelguard-job" in line]


with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not here"
)


@with_systemd
@pytest.mark.parametrize("at", ["02:30", "mon 23:59"])
def test_systemd_finds_nothing_wrong(at: str, odd: Desk, tmp_path: Path) -> None:
    files = configuration("systemd", odd.job, at=at).files
    assert faults(files, tmp_path) == []
    calendar = files["labelguard-job.timer"].partition("OnCalendar=")[2].splitlines()[0]
    subprocess.run(["systemd-analyze", "calendar", calendar], check=True, capture_output=True)


@with_systemd
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("Type=oneshot", "Type=sometimes"), ("ExecStart=/", "ExecStart=/nowhere/"), ("%%", "%Z")],
)
def test_systemd_would_find_a_fault(right: str, wrong: str, odd: Desk, tmp_path: Path) -> None:
    text = configuration("systemd", odd.job).files["labelguard-job.service"]
    assert right in text
    assert faults({"labelguard-job.service": text.replace(right, wrong)}, tmp_path)


@pytest.fixture
def secretive(odd: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A job that needs a secret to tell, and one to pull; its keys are elsewhere."""
    monkeypatch.setenv("HOME", "/home/50% off")
    monkeypatch.setenv("LABELGUARD_KEYS", '/srv/"my" 9% keys')
    settings = {"notify": {"url": "https://example.org/hook"}, "pull": ["desk"], "input": None}
    odd.asks(**settings)
    yield odd
    odd.asks()


SECRET_FILE = "/home/50% off/.config/labelguard/labelguard_notify_secret"


def test_cron_is_told_where_secrets_and_keys_are(secretive: Desk) -> None:
    [text] = configuration("cron", secretive.job).files.values()
    comment, *lines, _ = text.splitlines()
    assert comment.startswith("# ")
    assert f"LABELGUARD_NOTIFY_SECRET_FILE={SECRET_FILE}" in lines
    assert 'LABELGUARD_KEYS=/srv/"my" 9% keys' in lines
    assert any(line.startswith("# LABELGUARD_DESK_API_KEY_FILE=/") for line in lines)


@with_systemd
def test_systemd_is_told_where_secrets_and_keys_are(secretive: Desk, tmp_path: Path) -> None:
    files = configuration("systemd", secretive.job).files
    assert faults(files, tmp_path) == []
    text = files["labelguard-job.service"]
    secret = "LoadCredential=LABELGUARD_NOTIFY_SECRET:" + SECRET_FILE.replace("%", "%%")
    pointer = "Environment=LABELGUARD_NOTIFY_SECRET_FILE=%d/LABELGUARD_NOTIFY_SECRET"
    assert {secret, pointer} <= set(text.splitlines())
    assert "\n# LoadCredential=LABELGUARD_DESK_API_KEY:/" in text
    broken = {"labelguard-job.service": text.replace("Credential=L", "Credential=/L")}
    assert faults(broken, tmp_path)
    broken = {"labelguard-job.service": text.replace("9%%", "9%Z")}
    assert faults(broken, tmp_path)


def test_kubernetes_takes_the_manifest_and_lets_one_job_run_at_a_time(odd: Desk) -> None:
    odd.asks(name="Nightly_1.x", notify={"url": "https://example.org/hook"})
    files = configuration("kubernetes", odd.job, at="sat 01:05").files
    [(name, text)] = files.items()
    manifest = yaml.safe_load(text)
    kubernetes_validate.validate(manifest, "1.31", strict=True)
    assert (name, manifest["metadata"]["name"]) == (f"{NAME}.yaml", NAME)
    spec = manifest["spec"]
    assert spec["concurrencyPolicy"] == "Forbid" and croniter.is_valid(spec["schedule"])
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["restartPolicy"] == "Never" and pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    check_command(container["args"])
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert {"/project", "/keys"} <= mounts
    assert f"--uid {pod['securityContext']['runAsUser']}" in (ROOT / "Dockerfile").read_text()
    with pytest.raises(kubernetes_validate.ValidationError):
        broken = {**manifest, "spec": {**spec, "concurrencyPolicy": 1}}
        kubernetes_validate.validate(broken, "1.31", strict=True)


def test_what_is_printed_is_nothing_but_the_configuration(odd: Desk) -> None:
    odd.asks()
    result = CliRunner().invoke(main, ["retrain", str(odd.job), "--print", "systemd"])
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout.startswith("# labelguard-job.service\n[Unit]\n")
    assert "# labelguard-job.timer\n" in result.stdout


@pytest.mark.parametrize("at", ["24:00", "2:30", "every day", "* * * * *", "02:30\nroot: x"])
def test_another_time_is_refused(at: str, odd: Desk) -> None:
    with pytest.raises(LabelguardError, match=r"^at is a time"):
        configuration("cron", odd.job, at=at)
