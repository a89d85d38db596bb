"""Makes tests/connectors/recordings/label_studio anew.

Run it with `PYTHONPATH=tests python -m integration.record_label_studio`.
One server, one project, two people: every kind of event that tells of annotations, and the data
manager's page of what is left at the end. Tokens are replaced.
"""

import json
from pathlib import Path
from typing import Any

from integration.label_studio_server import label_studio_server
from integration.webhook_receiver import webhook_receiver

FOLDER = Path(__file__).parents[1] / "connectors/recordings/label_studio"
CONFIG = """<View>
  <Paragraphs name="prompt" value="$prompt" layout="dialogue" nameKey="role" textKey="content"/>
  <Text name="answer1" value="$answer1"/>
  <Text name="answer2" value="$answer2"/>
  <Pairwise name="better" toName="answer1,answer2"/>
  <Choices name="safer" toName="answer1">
    <Choice value="answer1"/><Choice value="answer2"/>
  </Choices>
  <Rating name="sure" toName="answer1"/>
  <TextArea name="why" toName="answer1"/>
</View>"""
TASKS = [
    {
        "prompt": [{"role": "user", "content": f"What is {n}+{n}?"}],
        "answer1": str(2 * n),
        "answer2": "ünbekannt",
        "external_id": f"pair-{n}",
    }
    for n in range(4)
]


def region(name, kind, value):
    """A region about the first response."""
    said = {"id": name, "from_name": name, "to_name": "answer1", "type": kind, "value": value}
    return {**said, "origin": "manual"}


def answer(side):
    """An annotation's result with a region of every kind."""
    return [
        region("better", "pairwise", {"selected": side}),
        region("safer", "choices", {"choices": ["answer1"]}),
        region("sure", "rating", {"rating": 4}),
        region("why", "textarea", {"text": ["because my sister Ada says so"]}),
    ]


def play(server, url):
    """What happens; the project."""
    project = server.project([], CONFIG)
    server.add_webhook(project, url, {"X-Secret": "of tests"})
    left = {"from_name": "better", "to_name": "answer1", "type": "pairwise"}
    left = {**left, "value": {"selected": "left"}}
    tasks: list[dict[str, Any]] = [{"data": data} for data in TASKS]
    tasks[3]["predictions"] = [{"result": [left]}]
    where = f"/api/projects/{project}/import"
    server.admin.http.post(where, json=tasks).raise_for_status()
    one, two, three, four = (int(task["id"]) for task in server.tasks(project))
    ada, ben = (server.user(f"{name}@example.com") for name in ("ada", "ben"))
    first = server.submit(ada, one, {"result": answer("left"), "lead_time": 12.5})
    server.change(ada, first, {"result": answer("right")})
    server.skip(ben, one)
    deleted = server.annotate(ben, two, "left")
    server.delete(deleted)
    server.change(server.admin, server.annotate(ada, two, "right"), {"ground_truth": True})
    server.annotate(ada, three, "left")
    server.annotate(ben, three, "right")
    server.act(project, "delete_tasks_annotations", [three])
    server.act(project, "predictions_to_annotations", [four])
    server.act(project, "delete_tasks", [three])
    return project


def scrubbed(body):
    """Without the project's token."""
    if isinstance(body, dict):
        return {
            name: "TOKEN-OF-THE-PROJECT" if name == "token" else scrubbed(value)
            for name, value in body.items()
        }
    return [scrubbed(one) for one in body] if isinstance(body, list) else body


def main():
    """Write the recordings."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with label_studio_server() as server, webhook_receiver() as receiver:
        project = play(server, receiver.url)
        found = {"events": receiver.bodies, "tasks": server.tasks(project)}
    for name, value in found.items():
        text = json.dumps(scrubbed(value), ensure_ascii=False, indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
