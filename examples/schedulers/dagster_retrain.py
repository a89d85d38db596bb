"""A job (docs/retraining.md) every night at 02:30, for Dagster. Edit the command's paths, and:
dagster dev -f dagster_retrain.py

In the environment of Dagster, where they are needed:
# LABELGUARD_KEYS=/srv/labelguard-keys
# LABELGUARD_LEDGER_URL=postgresql+psycopg://labelguard@host/labelguard?passfile=/srv/labelguard-pgpass
# LABELGUARD_NOTIFY_SECRET_FILE=/srv/labelguard-secrets/notify_secret
# LABELGUARD_LABEL_STUDIO_API_KEY_FILE=/srv/labelguard-secrets/label_studio_api_key
"""

import subprocess

import dagster

COMMAND = "/opt/labelguard/bin/labelguard retrain /srv/study/job.yaml --project /srv/study --strict"
EXHAUSTED, BUSY = 3, 4


@dagster.op
def retrain(context: dagster.OpExecutionContext) -> None:
    code = subprocess.run(COMMAND.split()).returncode
    if code == BUSY:  # another job works in the project
        raise dagster.RetryRequested(max_retries=3, seconds_to_wait=1800)
    if code == EXHAUSTED:  # no failure, and no use in trying again
        context.log.warning("the budget is exhausted")
    elif code:
        raise dagster.Failure(f"labelguard retrain: exit code {code}")


@dagster.job
def labelguard_retrain() -> None:
    retrain()


schedule = dagster.ScheduleDefinition(job=labelguard_retrain, cron_schedule="30 2 * * *")
definitions = dagster.Definitions(jobs=[labelguard_retrain], schedules=[schedule])
