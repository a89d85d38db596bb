"""A job in the terms of schedulers: cron, systemd, Kubernetes. Each starts what a person types."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelguard._version import __version__
from labelguard.errors import LabelguardError
from labelguard.ingest.credentials import variable
from labelguard.jobs.run import home_of
from labelguard.jobs.settings import Job, load
from labelguard.project.opening import Where

DAILY = "02:30"
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WHEN = re.compile(rf"(?:({'|'.join(_DAYS)}) )?([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class Configuration:
    """What a scheduler is told."""

    scheduler: str
    """cron, systemd or kubernetes"""
    files: Mapping[str, str]
    """texts by the names of the files that they belong into"""


@dataclass(frozen=True)
class _When:
    day: int | None
    hour: int
    minute: int

    @property
    def cron(self) -> str:
        return f"{self.minute} {self.hour} * * {'*' if self.day is None else self.day}"

    @property
    def calendar(self) -> str:
        day = "" if self.day is None else f"{_DAYS[self.day].capitalize()} "
        return f"{day}*-*-* {self.hour:02d}:{self.minute:02d}:00"


def configuration(
    scheduler: str, path: Path, *, at: str = DAILY, project: Where = None
) -> Configuration:
    """How a scheduler runs the job of a file, at a time of every day or week (`sun 02:30`).

    Raises `LabelguardError` for another time, and what the job's file raises.
    """
    job = load(path)
    found = _WHEN.fullmatch(at.lower())
    if not found:
        raise LabelguardError(f"--at is a time, 02:30, or a day and a time, sun 02:30; not {at!r}")
    day = _DAYS.index(found[1]) if found[1] else None
    home = home_of(job, project).state.parent
    _printable(f"{path.absolute()}{home}")
    return Configuration(
        scheduler,
        SCHEDULERS[scheduler](job, path.absolute(), home, _When(day, int(found[2]), int(found[3]))),
    )


def _command(path: Path, home: Path) -> list[str]:
    program = Path(sys.argv[0]).absolute()
    own = [str(program)] if program.name == "labelguard" else [sys.executable, "-m", "labelguard"]
    return [*own, "retrain", str(path), "--project", str(home), "--wait"]


def _cron(job: Job, path: Path, home: Path, when: _When) -> Mapping[str, str]:
    """One line of a crontab, in which % would end the command."""
    line = shlex.join(_command(path, home)).replace("%", "\\%")
    secrets = [f"{off}{name}_FILE={file}" for name, file, off in _secrets(job)]
    lines = [*([_FILES] if secrets else []), *secrets]
    lines += [f"{name}={value}" for name, value in _places().items()]
    return {"crontab": "\n".join([*lines, f"{when.cron} {line}\n"])}


_FILES = "# Each file holds one secret and nothing else, and is yours alone (chmod 600)."


def _secrets(job: Job) -> Iterator[tuple[str, Path, str]]:
    """What a scheduler's environment lacks: a secret's variable, a file for it, `# ` if a keyring
    may have it instead. Files are those that the environment names, or in ~/.config/labelguard.
    """
    needed = [(job.settings.notify.secret_env, "")] if job.settings.notify else []
    needed += [(variable(name, "api_key"), "# ") for name in job.settings.pull]
    for name, off in needed:
        usual = Path.home() / ".config" / "labelguard" / name.lower()
        yield name, _printable(os.environ.get(f"{name}_FILE") or str(usual)), off


def _places() -> dict[str, Path]:
    """Where the project's keys are, if the environment says so."""
    names = ("LABELGUARD_KEYS", "LABELGUARD_KEY_FILE")
    return {name: _printable(os.environ[name]) for name in names if os.environ.get(name)}


def _printable(path: str) -> Path:
    if not path.isprintable():
        raise LabelguardError("a path with control characters cannot be told to a scheduler")
    return Path(path).absolute()


_SERVICE = """\
[Unit]
Description=labelguard job {name}
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
ExecStart={command}
WorkingDirectory={home}
{environment}UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full
"""
_TIMER = """\
[Unit]
Description=labelguard job {name}

[Timer]
OnCalendar={calendar}
Persistent=true

[Install]
WantedBy=timers.target
"""


def _systemd(job: Job, path: Path, home: Path, when: _When) -> Mapping[str, str]:
    """A service and its timer, for ~/.config/systemd/user."""
    command = " ".join(map(_word, _command(path, home)))
    unit = f"labelguard-{job.name}"
    service = _SERVICE.format(
        name=job.name,
        command=command,
        home=str(home).replace("%", "%%"),
        environment="".join(f"{line}\n" for line in _environment(job)),
    )
    return {
        f"{unit}.service": service,
        f"{unit}.timer": _TIMER.format(name=job.name, calendar=when.calendar),
    }


def _environment(job: Job) -> Iterator[str]:
    """Secrets as credentials of the service, which are files at %d, and where keys are."""
    secrets = list(_secrets(job))
    if secrets:
        yield _FILES
    for name, file, off in secrets:
        yield f"{off}LoadCredential={name}:{str(file).replace('%', '%%')}"
        yield f"{off}Environment={name}_FILE=%d/{name}"
    for name, place in _places().items():
        value = str(place).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        yield f'Environment="{name}={value}"'


def _word(word: str) -> str:
    """A word of a command as systemd reads it: % and $ stand for something there."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_./:=,@%+-]", escaped) else escaped


_USER = 10001
"""Who runs in the image (Dockerfile)."""


def _kubernetes(job: Job, path: Path, home: Path, when: _When) -> Mapping[str, str]:
    """A CronJob of the image, with project and keys on claims of their own."""
    import yaml

    inside = path.relative_to(home) if path.is_relative_to(home) else Path(path.name)
    name = f"labelguard-{re.sub('[^a-z0-9]+', '-', job.name.lower()).strip('-')}"[:52].strip("-")
    container: dict[str, Any] = {
        "name": "retrain",
        "image": f"labelguard:{__version__}",
        "args": ["retrain", f"/project/{inside.as_posix()}", "--project", "/project", "--wait"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "project", "mountPath": "/project"},
            {"name": "keys", "mountPath": "/keys"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    if job.settings.notify:
        secret = {"secretKeyRef": {"name": "labelguard-notify", "key": "secret"}}
        variable = job.settings.notify.secret_env
        container["env"] = [{"name": variable, "valueFrom": secret}]
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": "labelguard-project"}},
            {"name": "keys", "persistentVolumeClaim": {"claimName": "labelguard-keys"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name},
        "spec": {
            "schedule": when.cron,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "jobTemplate": {"spec": {"backoffLimit": 1, "template": {"spec": pod}}},
        },
    }
    return {f"{name}.yaml": yaml.safe_dump(manifest, sort_keys=False)}


SCHEDULERS: Mapping[str, Callable[[Job, Path, Path, _When], Mapping[str, str]]] = {
    "cron": _cron,
    "systemd": _systemd,
    "kubernetes": _kubernetes,
}
