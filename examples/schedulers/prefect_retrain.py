"""A job (docs/retraining.md) every night at 02:30, for Prefect 3. Edit the command's paths, and:
python prefect_retrain.py

In the environment of this process, where they are needed:
# LABELGUARD_KEYS=/srv/labelguard-keys
# LABELGUARD_LEDGER_URL=postgresql+psycopg://labelguard@host/labelguard?passfile=/srv/labelguard-pgpass
# LABELGUARD_NOTIFY_SECRET_FILE=/srv/labelguard-secrets/notify_secret
# LABELGUARD_LABEL_STUDIO_API_KEY_FILE=/srv/labelguard-secrets/label_studio_api_key
"""

import subprocess

from prefect import flow, task
from prefect.states import Completed, Failed, State

COMMAND = "/opt/labelguard/bin/labelguard retrain /srv/study/job.yaml --project /srv/study --strict"
EXHAUSTED, BUSY = 3, 4


@task(
    retries=3,  # while another job works in the project
    retry_delay_seconds=1800,
    retry_condition_fn=lambda task, run, state: state.name == "Busy",
)
def retrain() -> State:
    code = subprocess.run(COMMAND.split()).returncode
    if code == EXHAUSTED:  # no failure, and no use in trying again
        return Completed(name="Exhausted", message="the budget is exhausted")
    if code:
        name = "Busy" if code == BUSY else "Failed"
        return Failed(name=name, message=f"labelguard retrain: exit code {code}")
    return Completed()


@flow
def labelguard_retrain() -> State:
    return retrain(return_state=True)


if __name__ == "__main__":
    labelguard_retrain.serve("nightly", cron="30 2 * * *", limit=1)
