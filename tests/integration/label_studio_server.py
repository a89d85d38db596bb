"""A real Label Studio server on a free port, with people who annotate.

It is installed into a virtual environment of its own under the user's cache directory (a gigabyte,
some minutes, once), and keeps a migrated, empty database there, so that a start takes seconds.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from filelock import FileLock
from integration.servers import CACHE, free_port, installed, wait_for

ADMIN = "admin@example.com"
PASSWORD = "Passw0rd-of-tests"
# Two questions about the same pair; who is careful answers both.
CONFIG = """<View>
  <Text name="prompt" value="$prompt"/>
  <Pairwise name="better" toName="answer1,answer2"/>
  <Text name="answer1" value="$answer1"/>
  <Text name="answer2" value="$answer2"/>
  <Pairwise name="safer" toName="answer1,answer2"/>
  <TextArea name="why" toName="prompt"/>
</View>"""
_START_S = 300


@dataclass(frozen=True)
class User:
    """Somebody with an account; `id` is what annotations name."""

    id: int
    email: str
    http: httpx.Client = field(repr=False)


@dataclass(frozen=True)
class LabelStudioServer:
    """A running server. Every method speaks to its REST interface as the web page does."""

    url: str
    admin: User
    api_key: str = field(repr=False)  # the admin's personal access token

    def user(self, email):
        """A new account in the admin's organization."""
        link = self.admin.http.get("/api/invite").raise_for_status().json()["invite_url"]
        http = httpx.Client(base_url=self.url, timeout=60)
        http.get(link).raise_for_status()
        form = {"email": email, "password": PASSWORD, "allow_newsletters": "false"}
        _submit(http, link, form)
        return _identify(http, email)

    def project(self, tasks, config=CONFIG):
        """A new project with tasks of these data."""
        settings = {"title": "pairs", "label_config": config, "show_skip_button": True}
        project = self.admin.http.post("/api/projects/", json=settings).raise_for_status()
        number = int(project.json()["id"])
        if tasks:
            where = f"/api/projects/{number}/import"
            self.admin.http.post(where, json=[{"data": task} for task in tasks]).raise_for_status()
        return number

    def tasks(self, project):
        """Its tasks by their ids, with annotations."""
        asked = {"project": project, "fields": "all", "page_size": 10_000}
        found = self.admin.http.get("/api/tasks", params=asked).raise_for_status().json()["tasks"]
        return sorted(found, key=lambda task: int(task["id"]))

    def annotate(self, user, task, side, **more):
        """`user` prefers the side (left or right); `more` answers other control tags. The id."""
        return self.submit(user, task, {"result": regions(side, **more)})

    def skip(self, user, task):
        """`user` skips the task; the id of the cancelled annotation."""
        return self.submit(user, task, {"result": [], "was_cancelled": True})

    def submit(self, user, task, annotation):
        """Any annotation, as the interface takes it; its id."""
        answer = user.http.post(f"/api/tasks/{task}/annotations/", json=annotation)
        return int(answer.raise_for_status().json()["id"])

    def update(self, user, annotation, side, **more):
        """`user` changes her mind."""
        self.change(user, annotation, {"result": regions(side, **more)})

    def change(self, user, annotation, members):
        """Change any members of an annotation."""
        user.http.patch(f"/api/annotations/{annotation}/", json=members).raise_for_status()

    def delete(self, annotation):
        """The admin deletes an annotation."""
        self.admin.http.delete(f"/api/annotations/{annotation}/").raise_for_status()

    def add_webhook(self, project, url, headers):
        """Send every event of the project to `url` with these headers."""
        hook = {"url": url, "headers": dict(headers), "project": project, "send_payload": True}
        hook |= {"send_for_all_actions": True, "is_active": True}
        self.admin.http.post("/api/webhooks/", json=hook).raise_for_status()


def regions(side, **more):
    """The result of an annotation that prefers `side` under `better`, and others under `more`."""
    said = {"better": side, **more}
    return [
        {
            "id": name,
            "type": "pairwise",
            "from_name": name,
            "to_name": "answer1",
            "value": {"selected": selected},
        }
        for name, selected in said.items()
    ]


@contextmanager
def label_studio_server():
    """A fresh server with an admin and no project, stopped and deleted at the end."""
    template = _template()
    with tempfile.TemporaryDirectory(prefix="label-studio-") as name:
        data = Path(name) / "data"
        shutil.copytree(template, data)
        with _running(data) as url:
            admin = _login(url)
            token = admin.http.post("/api/token/").raise_for_status().json()["token"]
            yield LabelStudioServer(url, admin, token)


def _template():
    """A data directory whose database is migrated and has the admin; made once."""
    installed("label-studio", "label-studio", "label-studio>=1.23,<2")
    template = CACHE / "label-studio-data"
    with FileLock(CACHE / "label-studio.lock"):
        if not template.is_dir():
            making = CACHE / "label-studio-data.making"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            with _running(making) as url:
                _login(url)
            making.rename(template)
    return template


@contextmanager
def _running(data):
    """The server's process on `data`; its URL, once it answers."""
    port = free_port()
    command = [CACHE / "label-studio/bin/label-studio", "start", "--no-browser"]
    command += ["--internal-host", "127.0.0.1", "--port", str(port), "--data-dir", data]
    command += ["--username", ADMIN, "--password", PASSWORD]
    environment = os.environ | {
        "LABEL_STUDIO_BASE_DATA_DIR": str(data),
        "DJANGO_DB": "sqlite",
        "DATABASE_NAME": str(data / "label_studio.sqlite3"),
        "LATEST_VERSION_CHECK": "false",
        "COLLECT_ANALYTICS": "false",
        "SENTRY_DSN": "",
        "FRONTEND_SENTRY_DSN": "",
        "FEATURE_FLAGS_OFFLINE": "true",
        "LABEL_STUDIO_DISABLE_SIGNUP_WITHOUT_LINK": "true",
        "DEBUG": "false",
        "SSRF_PROTECTION_ENABLED": "false",  # else webhooks to 127.0.0.1 are silently not sent
    }
    environment.pop("PYTHONPATH", None)  # it runs from an environment of its own
    with (data / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{url}/health", process, data / "server.log", _START_S)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def _login(url):
    http = httpx.Client(base_url=url, timeout=60)
    http.get("/user/login/").raise_for_status()
    _submit(http, "/user/login/", {"email": ADMIN, "password": PASSWORD})
    return _identify(http, ADMIN)


def _submit(http, where, form):
    token = {"csrfmiddlewaretoken": http.cookies["csrftoken"]}
    answer = http.post(where, data={**form, **token}, headers={"Referer": str(http.base_url)})
    if answer.status_code != 302:
        raise RuntimeError(f"Label Studio took no form at {where.split('?')[0]}")


def _identify(http, email):
    """Whose session it is; what the session writes carries the token against forged requests."""
    http.headers["X-CSRFToken"] = http.cookies["csrftoken"]
    http.headers["Referer"] = str(http.base_url)
    return User(
        int(http.get("/api/current-user/whoami").raise_for_status().json()["id"]), email, http
    )
