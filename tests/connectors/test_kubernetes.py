"""The manifests of examples/kubernetes: valid, without privileges, of commands that there are.

What docs/operations.md says about them is said in words of theirs.
"""

import os
import re
import shlex
import shutil

import kubernetes_validate
import pytest
import yaml
from croniter import croniter
from support import databases
from support.commands import run
from support.lives import PRICE, TABLE
from support.pages import DOCS, ROOT, blocks, check_command
from support.releases import make_release

import labelguard as lg
from labelguard import __version__
from labelguard.project.project import find

FILES = {path.name: path for path in sorted((ROOT / "examples/kubernetes").iterdir())}
PODS = [name for name in FILES if name != "storage.yaml"]
CONNECTOR = "LABEL_STUDIO"
MADE_ELSEWHERE = {"labelguard-input"}
VERSIONS = ("1.31", "1.37")
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")


def read(name, *, optional=False):
    """The objects in a file; also with its optional lines, which are comments."""
    text = FILES[name].read_text(encoding="utf-8")
    if optional:
        text = re.sub(r"(?m)^( *)# (- name:|  valueFrom:)", r"\1\2", text)
    return list(yaml.safe_load_all(text))


def find_pod(name, **how):
    """What a file says of its pods, and of the one container in them."""
    spec = read(name, **how)[0]["spec"]
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod = spec["template"]["spec"] if "template" in spec else spec
    [container] = pod["containers"]
    return pod, container


def list_claims(pod):
    """The claims that a pod mounts."""
    volumes = (one.get("persistentVolumeClaim") for one in pod["volumes"])
    return {claim["claimName"] for claim in volumes if claim}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_kubernetes_accepts_the_manifests(name, version):
    for manifest in [*read(name), *read(name, optional=True)]:
        kubernetes_validate.validate(manifest, version, strict=True)
        assert manifest["metadata"]["name"].startswith("labelguard-")


@pytest.mark.parametrize("name", PODS)
def test_pods_have_no_privileges_and_say_what_they_need(name):
    pod, container = find_pod(name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "fsGroup" not in pod["securityContext"]  # it would open keys to a group
    assert f"--uid {pod['securityContext']['runAsUser']}" in (ROOT / "Dockerfile").read_text()
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] is True and own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert container["resources"]["limits"]["memory"]
    assert container["image"] == f"labelguard:{__version__}"


@pytest.mark.parametrize("name", [name for name in PODS if name != "shell.yaml"])
def test_commands_are_those_of_the_command_line(name):
    words = find_pod(name)[1]["args"]
    check_command([str(ROOT / "README.md") if one.startswith("/input/") else one for one in words])


@pytest.mark.parametrize("name", PODS)
def test_variables_are_known_and_no_secret_is_written_down(name):
    known = set(re.findall(r"`(LABELGUARD_\w+)`", (DOCS / "cli.md").read_text(encoding="utf-8")))
    pod, container = find_pod(name, optional=True)
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    for variable in container["env"]:
        plain = variable["name"].replace(CONNECTOR, "NAME")
        assert {plain, plain.removesuffix("_FILE")} & known, plain
        if "value" in variable:  # a path, on a volume
            assert any(variable["value"].startswith(f"{mount}/") for mount in mounts), variable
        else:
            assert set(variable["valueFrom"]) == {"secretKeyRef"}
    [url] = [one for one in container["env"] if one["name"] == "LABELGUARD_LEDGER_URL"]
    assert url["valueFrom"] == {"secretKeyRef": {"name": "labelguard-ledger", "key": "url"}}
    assert {one["name"] for one in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert {"/project", "/tmp"} <= set(mounts)


def test_claims_are_declared_and_may_be_mounted_by_many():
    declared = {one["metadata"]["name"]: one["spec"] for one in read("storage.yaml")}
    assert all(spec["accessModes"] == ["ReadWriteMany"] for spec in declared.values())
    mounted = set().union(*(list_claims(find_pod(name)[0]) for name in PODS))
    assert mounted == declared.keys() | MADE_ELSEWHERE
    assert all(name in PAGE for name in MADE_ELSEWHERE)


def test_the_hook_is_asked_whether_it_lives_and_is_found_by_its_service():
    deployment, service = read("hook.yaml")
    _, container = find_pod("hook.yaml")
    [port] = container["ports"]
    assert port["containerPort"] == 8410
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert paths["liveness"] == {"path": "/healthz", "port": port["name"]}
    assert paths["readiness"] == {"path": "/readyz", "port": port["name"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]


def test_who_breaks_into_the_hook_finds_no_key_of_the_tool():
    of = {name: str(find_pod(name)) for name in ("hook.yaml", "worker.yaml")}
    assert "API_KEY" in of["worker.yaml"] and "labelguard-tool" in of["worker.yaml"]
    assert "API_KEY" not in of["hook.yaml"] and "labelguard-tool" not in of["hook.yaml"]


def test_one_run_of_a_job_at_a_time():
    [manifest] = read("retrain.yaml", optional=True)
    assert manifest["spec"]["concurrencyPolicy"] == "Forbid"
    assert croniter.is_valid(manifest["spec"]["schedule"])
    pod, container = find_pod("retrain.yaml", optional=True)
    assert pod["restartPolicy"] == "Never" and "--wait" in container["args"]
    assert container["env"][-1]["name"] == "LABELGUARD_NOTIFY_SECRET"


def test_the_page_names_every_file_and_secret_and_commands_that_there_are():
    assert all(f"kubernetes/{name}" in PAGE for name in FILES)
    text = "".join(path.read_text(encoding="utf-8") for path in FILES.values())
    named = set(re.findall(r"(?:secretName|secretKeyRef: {name): ([\w-]+)", text))
    pages = PAGE + (DOCS / "retraining.md").read_text(encoding="utf-8")
    assert len(named) == 5 and all(name in pages for name in named)
    lines = [line for _, block in blocks("operations.md", "sh") for line in block.splitlines()]
    typed = [line.partition("labelguard ")[2] for line in lines if "labelguard-shell --" in line]
    typed = [line.partition(" >")[0].partition(" |")[0] for line in typed if line]
    assert len(typed) >= 5
    for line in typed:
        check_command(shlex.split(line))


@pytest.mark.slow  # on PostgreSQL
def test_a_project_moves_to_another_database_with_its_key_in_a_secret(tmp_path, monkeypatch):
    keys, secret = tmp_path / "keys", tmp_path / "secret"
    monkeypatch.setenv("LABELGUARD_KEYS", str(keys))
    with databases.on("postgresql", tmp_path, monkeypatch):
        lg.init(tmp_path / "first")
        secret.mkdir(mode=0o755)
        shutil.move(keys / "project.key", secret / "project.key")
        monkeypatch.setenv("LABELGUARD_KEY_FILE", str(secret / "project.key"))
        make_release(TABLE.slice(0, 50), **PRICE, project=tmp_path / "first")
        run("project", "backup", tmp_path / "backup.tar.zst", project=find(tmp_path / "first"))
        rows = databases.dump(_url())["charges"]
    shutil.rmtree(tmp_path / "first")
    with databases.on("postgresql", tmp_path, monkeypatch):  # the first database is gone
        target = tmp_path / "second"
        run("project", "restore", tmp_path / "backup.tar.zst", target, "--nothing-since")
        assert databases.dump(_url())["charges"] == rows
        assert not (target / ".labelguard/ledger.sqlite3").exists()
        assert not (keys / "project.key").exists()
        run("budget", "verify", project=find(target))
        assert make_release(TABLE, **PRICE, project=target).reused is False


def _url():
    return os.environ["LABELGUARD_LEDGER_URL"]
