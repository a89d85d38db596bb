"""Promoted models in MLflow too, where it is installed: one version each, tagged and aliased."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labelguard.errors import LabelguardError
from labelguard.extras import MissingExtra
from labelguard.jobs.settings import Mlflow

ALIAS = "current"
_MODEL, _IDENTITY = "labelguard.model", "labelguard.identity"


def check(settings: Mlflow | None) -> None:
    """Raise `MissingExtra` if MLflow is asked for and not installed."""
    if settings is not None and find_spec("mlflow") is None:
        raise MissingExtra("promote.mlflow needs mlflow; install it with: pip install mlflow")


def register(
    settings: Mlflow, model: Path, project: str, job: str, facts: Mapping[str, Any]
) -> str:
    """Register a promoted model's directory, unless it is, and let the alias `current` name it.

    `facts` are what the job's own register says of it. A version is known by the project, the job
    and the files: a register that was lost counts from one again. Returns the version; raises
    `LabelguardError` if MLflow refuses.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        client = mlflow.MlflowClient(settings.uri, settings.uri)
        identity = _identity(project, job, facts["files"])
        version = _known(client, settings.model, identity) or _logged(
            client, settings.model, model, job, identity, facts
        )
        client.set_registered_model_alias(settings.model, ALIAS, version)
    except (MlflowException, OSError, ImportError) as error:
        kind = type(error).__name__
        raise LabelguardError(f"promote.mlflow: MLflow refused it ({kind})") from error
    return version


def _identity(project: str, job: str, files: Mapping[str, str]) -> str:
    content = json.dumps([project, job, files], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _known(client: Any, name: str, identity: str) -> str | None:
    quoted = name.replace("'", "\\'")
    found = client.search_model_versions(f"name = '{quoted}'")
    return next((str(one.version) for one in found if one.tags.get(_IDENTITY) == identity), None)


def _logged(
    client: Any, name: str, model: Path, job: str, identity: str, facts: Mapping[str, Any]
) -> str:
    from mlflow.exceptions import MlflowException

    tags = {_MODEL: f"{job}/{model.name}", _IDENTITY: identity} | {
        f"labelguard.{key}": str(facts[key]) for key in ("release", "mechanism", "epsilon", "delta")
    }
    name_of_all = f"labelguard {job}"
    known = client.get_experiment_by_name(name_of_all)
    experiment = known.experiment_id if known else client.create_experiment(name_of_all)
    run = client.create_run(experiment, tags=tags)
    client.log_artifacts(run.info.run_id, str(model), "model")
    client.set_terminated(run.info.run_id)
    if not client.search_registered_models(f"name = '{name}'"):
        try:
            client.create_registered_model(name)
        except MlflowException:
            client.get_registered_model(name)  # somebody else was faster
    source = f"{run.info.artifact_uri}/model"
    made = client.create_model_version(name, source, run.info.run_id, tags=tags)
    return str(made.version)
