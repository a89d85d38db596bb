"""What must hold before a job pulls or charges anything: a machine agrees to nothing."""

from __future__ import annotations

from labelguard.answers import connector
from labelguard.errors import PolicyError
from labelguard.jobs import evaluating, gates, mlflow_registry, notifying
from labelguard.jobs.promoting import Models
from labelguard.jobs.settings import Job
from labelguard.jobs.steps import Step
from labelguard.project import policies
from labelguard.project.policy_facts import PolicyDetails
from labelguard.project.project import Project
from labelguard.release.mechanisms import open_mechanism
from labelguard.report import overview


def check(job: Job, home: Project, step: Step, models: Models) -> None:
    """Raise `PolicyError` for what the policy in force does not pay for, and what parts of the job
    raise that could not do theirs.
    """
    own = job.settings
    notifying.check(own.notify)
    mlflow_registry.check(own.promote.mlflow)
    policy = agreed(home)
    paid = {f"release.mechanism: {own.release.mechanism}": own.release.mechanism}
    if own.gate.by == "held-out":
        paid["gate.by: held-out"] = evaluating.MECHANISM
    for line, mechanism in paid.items():
        if (event := str(open_mechanism(mechanism).priced)) not in policy.events:
            raise PolicyError(
                f"{line} is paid for as {event}, and policy {policy.name} pays for "
                f"{' and '.join(policy.events)} only; put one into force that does (labelguard "
                "policy new, policy activate), or change job.yaml"
            )
    if own.gate.by == "held-out" and not policy.held_out:
        raise PolicyError(
            f"gate.by: held-out needs labelers who are held out, and policy {policy.name} holds "
            "out none; put one into force that does (labelguard policy new --held-out), or take "
            "another gate"
        )
    gates.check(own.gate, step, own.release.mechanism, models, job.base)
    coordinates = None
    if own.gate.by == "held-out":
        evaluating.check(own.release.mechanism, home, models.current)
        coordinates = evaluating.coordinates(home, models.current)
    step.check(own.release.mechanism, coordinates)
    for name in own.pull:
        connector.named(home.connectors, name)


def agreed(home: Project) -> PolicyDetails:
    """The policy in force. Raises `PolicyError` where there is none."""
    policy = overview.budget(home).policy
    if policy is None:
        drafts = [one.name for one in policies.listing(home) if one.state == "draft"]
        if drafts:
            raise PolicyError(
                "a job releases under a policy in force, and there are only drafts: look at "
                f"{' or '.join(drafts)} (labelguard policy show {drafts[-1]}), then labelguard "
                f"policy activate {drafts[-1]}"
            )
        raise PolicyError(
            "a job releases under a policy in force, and there is none: make one (labelguard "
            "policy new, policy activate), or a first release by hand (labelguard privatize)"
        )
    return policy
