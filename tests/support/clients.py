"""A client of the hook in this process, and the inbox behind it."""

import contextlib

from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoints
from starlette.testclient import TestClient
from support import hooks

from labelguard.project.opening import OpenProject


@contextlib.contextmanager
def inbox_of(made):
    """The inbox of a project."""
    with contextlib.closing(OpenProject.open(made).answers.open_inbox()) as inbox:
        yield inbox


@contextlib.contextmanager
def client(made, limits=None, *, serves=True, token=""):
    """A client of a project's hook, which may serve no connector, and its inbox."""
    with inbox_of(made) as inbox:
        served = Endpoints.of(made).served if serves else {}
        hook = Hook(served, inbox, limits or Limits(), ServedProject(made))
        with TestClient(application({"": hook}, token=token)) as found:
            yield found, inbox


def post(tool, content, name="clinic"):
    """The status and the headers of the answer to a delivery."""
    answer = tool.post(f"/hooks/{name}", content=content, headers=hooks.headers())
    return answer.status_code, dict(answer.headers)
