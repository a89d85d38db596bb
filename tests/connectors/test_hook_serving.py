"""`labelguard serve` as people start it: with its worker, and with what it refuses.

Deliveries are proven by one of four schemes, within five minutes, by any secret that holds.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelguard_connectors.hook import server
from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoints, Refused, Scheme
from standardwebhooks.webhooks import Webhook
from starlette.testclient import TestClient
from support import hooks, tools
from support.pages import DOCS

from labelguard.answers.connector import Settings
from labelguard.errors import ConnectorError, LabelguardError
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find
from labelguard.report import overview

RELEASE = """
[hook.release]
when = "every:6"
mechanism = "rr"
push = true
"""


@pytest.fixture
def clinic(project, tmp_path, monkeypatch):
    """A project with a policy, whose hook listens to a tool."""
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:uses=50,block=1"])
    policies.activate("clinic", project)
    monkeypatch.setenv("LABELGUARD_DESK_HOOK_SECRET", hooks.SECRET)
    return tools.connected(project, tmp_path, monkeypatch, RELEASE)


def children(process):
    """The processes that a process started."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return sorted({int(one) for path in threads for one in path.read_text().split()})


def wait(what, seconds, done):
    """Until it is so; so many seconds are for machines that are busy."""
    for _ in range(seconds * 10):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError(what)


def alive(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize("end", [pytest.param("told", marks=pytest.mark.slow), "killed"])
def test_what_a_tool_delivers_is_released_and_published_by_the_worker(clinic, end):
    made, desk = clinic
    told = [desk.answer(f"worker {n % 3}", n, "left" if n % 2 else "right") for n in range(1, 7)]
    with hooks.serving(made) as server:
        for event in told:
            body = json.dumps(event).encode()
            where = f"{server.url}/hooks/desk"
            assert httpx2.post(where, content=body, headers=hooks.headers()).status_code == 200
        wait(
            "no release",
            60,
            lambda: [r for r in overview.list_releases(made) if r.state == "committed"],
        )
        (release,) = overview.list_releases(made)
        assert release.rows == 6
        wait("not published", 60, (desk.path.parent / release.id).exists)
        (worker,) = children(server.process.pid)
        if end == "told":
            assert server.stop() == 0
        else:
            server.kill()
        wait("the worker works on", 60, lambda: not alive(worker))
    lines = "".join(server.lines)
    assert "releases every 6 new answers by rr, under policy clinic" in lines
    for one in (hooks.SECRET, "worker 1", "prompt 1", '"left"'):
        assert one not in lines


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_seen(clinic):
    made, _ = clinic
    with hooks.serving(made) as server:
        assert httpx2.get(f"{server.url}/status").json()["worker"] == "runs"
        with (made.state / CONFIG).open("a") as file:
            file.write("\n[broken")
        wait("no worker", 30, lambda: children(server.process.pid))
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        wait("it runs", 60, lambda: "up 0.0" in httpx2.get(f"{server.url}/metrics").text)
        assert "in a row" in httpx2.get(f"{server.url}/status").json()["worker"]


@pytest.mark.slow
def test_a_worker_that_died_is_started_again(clinic):
    made, _ = clinic
    with hooks.serving(made) as server:
        wait("no worker", 30, lambda: children(server.process.pid))
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait("no other worker", 60, lambda: set(children(server.process.pid)) - {worker})
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        others = set(children(server.process.pid)) - {worker}
        assert server.stop() == 0
        wait("the worker works on", 60, lambda: not any(map(alive, others)))


def read_refusal(made, *options):
    """What `labelguard serve` says before it ends with 1."""
    command = [sys.executable, "-m", "labelguard", "serve", "--port", "0", *options]
    ran = subprocess.run(
        [*command, "--project", str(made.state)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    return ran.stderr


@pytest.mark.slow
def test_without_a_policy_deliveries_are_kept_and_the_worker_says_that_none_is_released(
    project, tmp_path, monkeypatch
):
    monkeypatch.setenv("LABELGUARD_DESK_HOOK_SECRET", hooks.SECRET)
    made, desk = tools.connected(project, tmp_path, monkeypatch, RELEASE)
    body = json.dumps(desk.answer("ann", 1, "left")).encode()
    with hooks.serving(made) as server:
        sent = httpx2.post(f"{server.url}/hooks/desk", content=body, headers=hooks.headers())
        assert sent.status_code == 200
        wait("no word", 60, lambda: any("no policy is in force" in one for one in server.lines))
        wait("not read", 60, lambda: any('"reconciled"' in one for one in server.lines))
        assert server.stop() == 0
    lines = "".join(server.lines)
    assert '"answers": 1, "releases": []' in lines and "leaked" not in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--host", "no such host"), "cannot listen on no such host"),
    ],
)
def test_an_address_that_cannot_be_had_is_said_in_one_line(clinic, options, said):
    error = read_refusal(clinic[0], "--no-worker", *options)
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_project_without_connectors_is_not_served(project):
    assert "labelguard.toml has no [connectors.NAME]" in read_refusal(project)


BODY = json.dumps({"type": "response.created", "data": {"value": "left ✓"}}).encode()
OLD, NEW = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
PLAIN_OLD, PLAIN_NEW = "correct-horse-battery", "staple-ñ-secret"


def scheme(name, kind="tool", **hook):
    return Scheme.of(
        Settings.from_table("clinic", {"kind": kind, "hook": {"scheme": name, **hook}})
    )


def standard(secret, *, ago=0, body=BODY, number="msg_1"):
    """Headers as the library of Standard Webhooks makes them."""
    at = datetime.now(UTC) - timedelta(seconds=ago)
    return {
        "webhook-id": number,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(number, at, body.decode()),
    }


def sign_with_time(secret, *, ago=0, body=BODY):
    """Headers as Prolific documents them: base64 HMAC-SHA256 of timestamp and body."""
    stamp = str(int(time.time() - ago))
    digest = hmac.new(secret.encode(), stamp.encode() + body, hashlib.sha256).digest()
    return {
        "x-prolific-request-timestamp": stamp,
        "x-prolific-request-signature": base64.b64encode(digest).decode(),
    }


def sign_in_hex(secret, *, body=BODY):
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}"}


def shared(secret):
    # What arrives are bytes; ASGI servers and we read them as Latin-1.
    return {"x-labelguard-secret": secret.encode().decode("latin-1")}


Proof = Callable[..., dict[str, str]]
PROOFS: list[tuple[str, Proof, str, str]] = [
    ("standard-webhooks", standard, OLD, NEW),
    ("hmac-sha256", sign_in_hex, PLAIN_OLD, PLAIN_NEW),
    ("hmac-timestamp", sign_with_time, PLAIN_OLD, PLAIN_NEW),
    ("shared-secret", shared, PLAIN_OLD, PLAIN_NEW),
]


@pytest.mark.parametrize(("name", "proof", "old", "new"), PROOFS)
def test_either_secret_proves_a_delivery_while_one_replaces_another(name, proof, old, new):
    found = scheme(name)
    for secret in (old, new):
        for both in ((old, new), (new, old), (secret,)):
            found.verify(both, proof(secret), BODY)
    for secrets in ((new,), ()):
        with pytest.raises(Refused):
            found.verify(secrets, proof(old), BODY)


@pytest.mark.parametrize(("name", "proof", "old", "new"), PROOFS[:3])
def test_a_signature_is_of_this_body_alone(name, proof, old, new):
    with pytest.raises(Refused):
        scheme(name).verify((old, new), proof(old), BODY + b" ")


@pytest.mark.parametrize(("name", "proof", "old", "new"), PROOFS)
def test_a_proof_is_compared_to_its_end(name, proof, old, new):
    *named, last = proof(old).items()
    for wrong in (last[1][:-1], last[1][:-4] + "0000"):
        with pytest.raises(Refused):
            scheme(name).verify((old, new), dict([*named, (last[0], wrong)]), BODY)


@pytest.mark.parametrize(("name", "proof", "old", "new"), PROOFS)
def test_without_its_headers_nothing_is_proven(name, proof, old, new):
    headers = proof(old)
    for left_out in headers:
        rest = {key: value for key, value in headers.items() if key != left_out}
        with pytest.raises(Refused):
            scheme(name).verify((old, new), rest, BODY)


@pytest.mark.parametrize(
    ("name", "proof", "secret"),
    [("standard-webhooks", standard, OLD), ("hmac-timestamp", sign_with_time, PLAIN_OLD)],
)
def test_a_signed_time_is_within_five_minutes_of_now(name, proof, secret):
    found = scheme(name)
    for ago in (-290, 0, 290):
        found.verify((secret,), proof(secret, ago=ago), BODY)
    for ago in (-310, 310, 1e9):
        with pytest.raises(Refused):
            found.verify((secret,), proof(secret, ago=ago), BODY)


def test_standard_webhooks_are_signed_as_their_specification_shows():
    at = datetime.fromtimestamp(1614265330, UTC)
    signed = Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", at, '{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_hmac_of_a_body_is_that_of_its_vector():
    # RFC 4231, case 2.
    digest = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    headers = {"x-signature": f"sha256={digest}"}
    found = scheme("hmac-sha256", header="X-Signature")
    found.verify(("Jefe",), headers, b"what do ya want for nothing?")
    with pytest.raises(Refused):
        found.verify(("Jefe",), {"x-signature": digest}, b"what do ya want for nothing?")


@given(
    st.sampled_from(PROOFS),
    st.dictionaries(
        st.sampled_from(
            [
                "webhook-id",
                "webhook-timestamp",
                "webhook-signature",
                "x-hub-signature-256",
                "x-prolific-request-timestamp",
                "x-prolific-request-signature",
                "x-labelguard-secret",
            ]
        ),
        st.one_of(
            st.text(st.characters(max_codepoint=255)),
            st.sampled_from(
                ["1e400", "nan", "-1", "9" * 400, "v1,", "v1,a,b", "v1,=", "sha256=", "٣"]
            ),
        ),
    ),
    st.binary(max_size=50),
)
def test_whatever_the_headers_a_delivery_that_is_not_proven_is_refused(proof, headers, body):
    name, _, old, new = proof
    with pytest.raises(Refused):
        scheme(name).verify((old, new), headers, body)


@pytest.mark.parametrize(
    ("address", "admitted"),
    [
        ("10.2.3.4", True),
        ("::ffff:10.2.3.4", True),
        ("192.0.2.7", True),
        ("2001:db8::1", True),
        ("192.0.2.8", False),
        ("2001:db9::1", False),
        ("testclient", False),
        (None, False),
    ],
)
def test_only_addresses_on_the_list_may_deliver(address, admitted):
    found = scheme("shared-secret", addresses=["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])
    if admitted:
        found.check_sender(address)
    else:
        with pytest.raises(Refused):
            found.check_sender(address)
    scheme("shared-secret").check_sender(address)  # without a list


@pytest.mark.parametrize(
    ("kind", "hook", "said"),
    [
        ("tool", {}, "hook.scheme: expected one of"),
        ("tool", {"scheme": "hmac-sha256", "secret": "x"}, "hook.secret: "),
        ("tool", {"scheme": "hmac-sha256", "header": "a b"}, "hook.header: expected the name of a"),
        ("argilla", {"header": "X-A"}, "the headers of standard-webhooks have fixed names"),
        ("label-studio", {"addresses": ["10.0.0.1/8"]}, "hook.addresses.0: expected an address"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, hook, said):
    with pytest.raises(ConnectorError, match=said):
        Scheme.of(Settings.from_table("clinic", {"kind": kind, "hook": hook}))


def test_tools_that_are_known_need_no_scheme():
    assert Scheme.of(Settings.from_table("argilla", {})).name == "standard-webhooks"
    assert Scheme.of(Settings.from_table("ours", {"kind": "label-studio"})).name == "shared-secret"


@pytest.mark.parametrize("secret", ["this-is-not-base64!", "whsec_==========", "ä" * 20])
def test_a_secret_that_cannot_be_one_of_standard_webhooks_is_refused_unshown(secret):
    with pytest.raises(ConnectorError, match="hook_secret must be base64") as caught:
        scheme("standard-webhooks").check_secrets("clinic", [secret])
    assert secret not in str(caught.value)
    scheme("standard-webhooks").check_secrets("clinic", [OLD, NEW])


@pytest.mark.parametrize("name", [name for name, *_ in PROOFS])
def test_a_phrase_is_not_as_many_secrets_as_it_has_words(name):
    secrets = (NEW, "correct", "horse", "battery", "staple")
    with pytest.raises(ConnectorError, match="at least 16 characters") as caught:
        scheme(name).check_secrets("clinic", secrets)
    assert "horse" not in str(caught.value)


def read_as_json(lines):
    """Every line as an object; fails at the first that is none."""
    return [json.loads(line) for line in "".join(lines).splitlines()]


@pytest.mark.slow
def test_a_hangup_ends_neither_the_server_nor_its_worker(clinic):
    made, desk = clinic
    with hooks.serving(made) as server:
        wait("no worker", 30, lambda: children(server.process.pid))
        (worker,) = children(server.process.pid)
        wait("not read", 60, lambda: any('"reconciled"' in one for one in server.lines))
        for process in (server.process.pid, worker):
            os.kill(process, signal.SIGHUP)
        body = json.dumps(desk.answer("ann", 1, "left")).encode()
        sent = httpx2.post(f"{server.url}/hooks/desk", content=body, headers=hooks.headers())
        assert sent.status_code == 200
        assert children(server.process.pid) == [worker] and alive(worker)
        assert server.stop() == 0


@pytest.mark.slow
def test_every_line_of_server_and_worker_is_one_json_object(clinic):
    made, desk = clinic
    with hooks.serving(made) as server:
        where = f"{server.url}/hooks/desk"
        for n in range(1, 7):
            body = json.dumps(desk.answer(f"worker {n % 3}", n, "left")).encode()
            assert httpx2.post(where, content=body, headers=hooks.headers()).status_code == 200
        bad = httpx2.post(where, content=b"no JSON", headers=hooks.headers())
        assert bad.status_code == 422  # kept as a dead letter
        with server.connect() as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            connection.recv(100)
        wait("nothing published", 60, lambda: any('"published"' in one for one in server.lines))
        text = (made.state / CONFIG).read_text()
        (made.state / CONFIG).write_text(f"{text}\n[broken")
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        wait("it runs", 60, lambda: any("labelguard.toml" in one for one in server.lines))
        (made.state / CONFIG).write_text(text)
        wait("it fails", 60, lambda: any(map(alive, children(server.process.pid))))
        assert server.stop() == 0
    events = [line["event"] for line in read_as_json([*server.lines, *server.printed])]
    assert {"serving", "released", "published", "worker ended", "ended"} <= {*events}


@pytest.mark.quick("options1")
@pytest.mark.parametrize("options", [("--host", "192.0.2.1"), ("--project", "/nowhere")])
def test_a_refusal_to_start_is_one_json_object(clinic, options):
    (line,) = read_as_json([read_refusal(clinic[0], "--no-worker", *options)])
    assert (line["event"], line["level"]) == ("refused", "error") and line["why"]


@pytest.mark.slow
def test_the_token_of_status_comes_from_the_environment_and_cannot_be_guessed(
    clinic, tmp_path, monkeypatch
):
    made, _ = clinic
    file = tmp_path / "token"
    file.write_text("short")
    file.chmod(0o600)
    monkeypatch.setenv("LABELGUARD_STATUS_TOKEN_FILE", str(file))
    assert "LABELGUARD_STATUS_TOKEN must have 16" in read_refusal(made)
    file.write_text("a-token-of-monitoring")
    with hooks.serving(made, "--no-worker") as server:
        assert httpx2.get(f"{server.url}/status").status_code == 401
        given = {"authorization": "Bearer a-token-of-monitoring"}
        assert httpx2.get(f"{server.url}/status", headers=given).status_code == 200
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
    assert "a-token-of-monitoring" not in "".join(server.lines)


STUMBLING = """
import logging, threading, warnings
from labelguard.errors import InvalidLabels
from labelguard_connectors.hook import logs
logs.configure()
warnings.warn("the left one")
logging.getLogger("argilla").warning("two" + chr(10) + "lines")
def fail(kind):
    raise kind("the left one")
thread = threading.Thread(target=fail, args=[InvalidLabels])
thread.start()
thread.join()
fail(ValueError)
"""


def test_warnings_and_crashes_are_json_too_and_say_nothing_of_what_they_were_given():
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", STUMBLING]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    lines = read_as_json([ran.stderr])
    assert [line["event"] for line in lines] == ["warning", "two\nlines", "crashed", "crashed"]
    assert lines[0]["kind"] == "UserWarning" and lines[3]["error"] == "ValueError"
    assert lines[2]["why"] == "the input cannot be read as configured"
    assert "the left one" not in ran.stderr and (ran.returncode, ran.stdout) == (1, "")


# One server for several projects: what opens one never opens another, and nothing is mixed up.

_STANDING = re.compile(r'"project": "(\w+)", .*"event": "release status"')
SECRETS = {"clinic": "of-the-clinic-and-long-enough", "survey": "of-the-survey-and-long-enough"}


@pytest.fixture
def projects(tmp_path, monkeypatch):
    """Two projects in directories of their own, each with a connector called after it."""
    made = {}
    for name, secret in SECRETS.items():
        (tmp_path / "made" / name).mkdir(parents=True)
        hooks.project(tmp_path / "made" / name, monkeypatch, name=name)
        (tmp_path / "made" / name / "project").rename(tmp_path / name)
        monkeypatch.setenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET", secret)
        made[name] = find(tmp_path / name)
    return made


@pytest.fixture
def client(projects):
    with contextlib.ExitStack() as stack:
        served = {}
        for name, made in projects.items():
            inbox = stack.enter_context(
                contextlib.closing(OpenProject.open(made).answers.open_inbox())
            )
            endpoints = Endpoints.of(made).served
            served[name] = Hook(endpoints, inbox, Limits(), ServedProject(made))
        yield stack.enter_context(TestClient(application(served)))


def deliver(client, path, secret, number=1):
    answer = client.post(path, content=hooks.body(number), headers=hooks.headers(secret))
    return answer.status_code


def test_a_delivery_is_in_the_inbox_of_its_project_alone(client, projects):
    for number, (name, secret) in enumerate(SECRETS.items()):
        assert deliver(client, f"/hooks/{name}/{name}", secret, number) == 200
    assert [hooks.stored(made) for made in projects.values()] == [{"a0": 1}, {"a1": 1}]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/hooks/survey/survey", 401),
        ("/hooks/survey/clinic", 404),
        ("/hooks/clinic/survey", 404),
        ("/hooks/clinic", 404),
        ("/hooks/clinic/", 404),
        ("/hooks//clinic", 404),
        ("/hooks/nobody/clinic", 404),
        ("/hooks/clinic/clinic/", 404),
        ("/hooks/survey/%2e%2e/clinic/clinic", 404),
        ("/hooks/clinic%2Fclinic", 200),
        ("/clinic/hooks/clinic", 404),
    ],
)
def test_the_secret_of_one_project_opens_no_other(path, status, client, projects):
    assert deliver(client, path, SECRETS["clinic"]) == status
    assert hooks.stored(projects["survey"]) == {}
    assert hooks.stored(projects["clinic"]) == ({"a1": 1} if status == 200 else {})


def test_what_is_watched_is_told_by_project(client):
    for number in range(3):
        deliver(client, "/hooks/clinic/clinic", SECRETS["clinic"], number)
    deliver(client, "/hooks/survey/survey", "a wrong secret, and a long one")
    assert client.get("/readyz").status_code == client.get("/healthz").status_code == 200
    status = client.get("/status").json()
    assert {name: one["waiting_events"] for name, one in status.items()} == {
        "clinic": 3,
        "survey": 0,
    }
    page = client.get("/metrics").text
    assert 'labelguard_hook_events_total{project="clinic"} 3.0' in page
    assert 'deliveries_total{connector="survey",project="survey",status="401"} 1.0' in page
    families = re.findall(r"(?m)^# TYPE (\S+)", page)
    assert len(families) == len(set(families)) > 10
    assert "/hooks/{project}/{connector}" in client.get("/openapi.json").json()["paths"]


def test_a_secret_that_two_projects_share_is_refused_and_not_shown(projects, monkeypatch):
    monkeypatch.setenv("LABELGUARD_SURVEY_HOOK_SECRET", f"{'x' * 20} {SECRETS['clinic']}")
    with pytest.raises(ConnectorError, match="survey has a secret of clinic as well") as error:
        server.serve(*projects.values(), port=0)
    assert SECRETS["clinic"] not in str(error.value)


@pytest.mark.parametrize("again", ["same", "link", "state", "another of this name", "odd name"])
def test_projects_that_cannot_be_told_apart_are_refused(again, projects, tmp_path):
    clinic = tmp_path / "clinic"
    other = {
        "same": clinic,
        "link": tmp_path / "link",
        "state": clinic / ".labelguard",
        "another of this name": tmp_path / "elsewhere" / "clinic",
        "odd name": tmp_path / "a b",
    }[again]
    if again == "link":
        other.symlink_to(clinic)
    elif not other.exists():
        other.parent.mkdir(exist_ok=True)
        (tmp_path / "survey").rename(other)
    with pytest.raises(ConnectorError, match=r"two projects are called|cannot stand in an address"):
        server.serve(clinic, other, port=0)


def test_a_ledger_of_one_project_serves_no_other(projects, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", f"sqlite:///{tmp_path / 'shared.sqlite3'}")
    with pytest.raises(LabelguardError):
        server.serve(*projects.values(), port=0)


def test_a_secret_file_that_is_empty_is_said_of_every_project(projects, tmp_path, monkeypatch):
    (tmp_path / "secret").touch(mode=0o600)
    for name in SECRETS:
        monkeypatch.delenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET")
        monkeypatch.setenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET_FILE", str(tmp_path / "secret"))
    with pytest.raises(ConnectorError, match=r"^clinic: .* hook_secret is empty: .*; survey: .*"):
        server.serve(*projects.values(), port=0)


def test_settings_that_cannot_be_are_said_of_their_project(projects):
    with (projects["survey"].state / CONFIG).open("a") as file:
        file.write('\n[hook.release]\nmechanism = "magic"\n')
    opened = [find(made.state.parent) for made in projects.values()]
    with pytest.raises(ConnectorError, match=r"^survey: .*mechanism: expected one of"):
        server.serve(*opened, port=0, worker=["true"])


@pytest.mark.slow
def test_the_command_of_the_page_serves_both_with_a_worker_each(projects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "connectors.md").read_text(encoding="utf-8")
    [line] = re.findall(r"(?m)^labelguard (serve --project .*)$", page)
    command = [sys.executable, "-m", "labelguard", *shlex.split(line), "--port", "0", "--json"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with started as process:
        assert process.stderr and process.stdout
        lines, standing = [], set[str]()
        for text in process.stderr:
            lines.append(text)
            standing |= set(_STANDING.findall(text))
            if len(standing) == 2 and any("startup complete" in line for line in lines):
                break
        [address] = re.findall(r"http://127\.0\.0\.1:\d+", "".join(lines))
        for name, secret in SECRETS.items():
            answer = httpx2.post(
                f"{address}/hooks/{name}/{name}",
                content=hooks.body(1),
                headers=hooks.headers(secret),
            )
            assert answer.status_code == 200
        process.terminate()
        summary = json.loads(process.stdout.read())
        rest = process.stderr.read()
    assert standing == {"clinic", "survey"}  # without a policy, and each by its name
    assert summary["connectors"] == ["clinic/clinic", "survey/survey"]
    assert (summary["deliveries"], summary["events"], started.returncode) == (2, 2, 0)
    assert not any(secret in "".join(lines) + rest for secret in SECRETS.values())


def test_nothing_is_served_whose_answers_no_release_could_read(tmp_path, monkeypatch):
    more = '[connectors.other]\nkind = "tool"\nsource = "clinic"\nquestion = "harmless"\n'
    project = hooks.project(tmp_path, monkeypatch, more)
    with pytest.raises(ConnectorError, match="clinic and other share source 'clinic' and differ"):
        server.serve(project, port=0)
