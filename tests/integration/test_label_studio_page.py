"""What people do in Label Studio's pages, with a mouse and a form, is what is released."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from integration.label_studio_server import ADMIN
from support.hooks import serving
from support.lives import put_into_force

import labelguard as lg
from labelguard.project.project import CONFIG, find

pytestmark = pytest.mark.browser
IMAGE = Path(__file__).parents[2] / "docs/images/label-studio-webhook.png"
ASKED = "UPDATE_SCREENSHOTS"
ANNOTATOR = "annotator@example.com"
INTERFACE = """<View>
  <Text name="prompt" value="$prompt"/>
  <Pairwise name="preference" toName="response_a,response_b"/>
  <Text name="response_a" value="$response_a"/>
  <Text name="response_b" value="$response_b"/>
</View>"""
TASKS = [
    {"prompt": f"question {n}", "response_a": f"one {n}", "response_b": f"two {n}"}
    for n in range(3)
]
SECRET = "of-this-test-alone"
# So much ε that no label is flipped, whatever the coins; and one release, after four answers.
EPSILON = 2000.0
SETTINGS = """
[connectors.label-studio]
url = "{url}"
project = {number}

[hook.release]
when = "every:4"
mechanism = "rr"
"""
PATIENCE = 120  # seconds; the worker looks every fifteen


@pytest.fixture
def numbered(label_studio):
    """A project of Label Studio with three pairs."""
    return label_studio.project(TASKS, INTERFACE)


@pytest.fixture
def project(tmp_path, label_studio, numbered, monkeypatch):
    """A project with a connector to it, and a policy that its worker releases under."""
    made = lg.init(tmp_path / "p", max_epsilon=10_000.0, max_delta=0.5)
    put_into_force(made, "open", "rr:uses=4,block=1", epsilon=EPSILON, delta=1e-9)
    with (made.state / CONFIG).open("a") as config:
        config.write(SETTINGS.format(url=label_studio.url, number=numbered))
    monkeypatch.setenv("LABELGUARD_LABEL_STUDIO_HOOK_SECRET", SECRET)
    monkeypatch.setenv("LABELGUARD_LABEL_STUDIO_API_KEY", label_studio.api_key)
    return find(made.state.parent)


def test_what_is_clicked_changed_and_skipped_is_released_so(
    browser, label_studio, numbered, project
):
    from integration.label_studio_page import login

    label_studio.user(ANNOTATOR)
    admin = login(browser, label_studio.url, ADMIN)
    annotator = login(browser, label_studio.url, ANNOTATOR)
    with serving(project) as hook:
        _shown_in_the_docs(admin, numbered)
        headers = {"X-Labelguard-Secret": SECRET}
        admin.enter_webhook(numbered, f"{hook.url}/hooks/label-studio", headers)
        admin.save_webhook()
        wait_for_log(hook, "reconciled")  # what comes from now on comes by the hook

        annotator.label_all(numbered)
        annotator.click("one 0")
        annotator.submit()
        annotator.click("two 1")
        annotator.submit()
        annotator.skip("one 2")
        annotator.open(numbered, int(label_studio.tasks(numbered)[0]["id"]))
        annotator.click("two 0")
        annotator.update()
        made = wait_for_log(hook, "released")["release"]

    rows = lg.load(project.releases / made).select("prompt", "chosen", "rejected").rows()
    assert sorted(rows) == [("question 0", "two 0", "one 0"), ("question 1", "two 1", "one 1")]


def wait_for_log(hook, event):
    """What the server or its worker logs of an event, once it does."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for line in hook.lines:
            if f'"event": "{event}"' in line:
                found: dict[str, Any] = json.loads(line)
                return found
        time.sleep(0.1)
    raise AssertionError(f"not {event}: {hook.lines}")


def _shown_in_the_docs(admin, numbered):
    """Take the picture of the form, if asked, as docs/label-studio.md tells to fill it."""
    if os.environ.get(ASKED):
        headers = {"X-Labelguard-Secret": "what hook-secret.txt holds"}
        admin.enter_webhook(numbered, "https://hook.example.com/hooks/label-studio", headers)
        admin.page.get_by_text("Payload URL").click()  # the mouse leaves the button's hint
        IMAGE.parent.mkdir(exist_ok=True)
        admin.page.screenshot(path=IMAGE)
