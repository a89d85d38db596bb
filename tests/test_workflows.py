"""The workflows of the repository: what they may do, and what they run."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["permissions"] == {"contents": "read"}
    return document["jobs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_uses_versions_of_actions_and_no_secret(path):
    text = path.read_text(encoding="utf-8")
    uses = [step["uses"] for job in jobs(path).values() for step in job["steps"] if "uses" in step]
    assert uses and all(re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", one) for one in uses)
    assert "secrets." not in text and all("timeout-minutes" in job for job in jobs(path).values())


def test_what_is_published_was_built_checked_and_signed_and_somebody_approved_it():
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    publish = release["publish"]
    assert (publish["needs"], publish["environment"]) == ("dist", "pypi")
    assert publish["permissions"] == {"attestations": "write", "id-token": "write"}
    assert "permissions" not in release["dist"]
    assert any(step.get("run") == "make test-dist" for step in release["dist"]["steps"])
    *_, provenance, bom, last = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert (provenance, bom) == ("actions/attest-build-provenance", "actions/attest-sbom")
    assert last == "pypa/gh-action-pypi-publish"
    assert not any("run" in step for step in publish["steps"])  # nothing of the build runs there
