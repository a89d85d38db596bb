"""A job (docs/retraining.md) every night at 02:30, as a DAG of Airflow 3. Edit the command's paths.

In the environment of the worker, where they are needed:
# LABELGUARD_KEYS=/srv/labelguard-keys
# LABELGUARD_LEDGER_URL=postgresql+psycopg://labelguard@host/labelguard?passfile=/srv/labelguard-pgpass
# LABELGUARD_NOTIFY_SECRET_FILE=/srv/labelguard-secrets/notify_secret
# LABELGUARD_LABEL_STUDIO_API_KEY_FILE=/srv/labelguard-secrets/label_studio_api_key
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

COMMAND = "/opt/labelguard/bin/labelguard retrain /srv/study/job.yaml --project /srv/study --strict"

with DAG(
    "labelguard_retrain",
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # one run takes in all that is new
    max_active_runs=1,
):
    BashOperator(
        task_id="retrain",
        bash_command=COMMAND,
        skip_on_exit_code=3,  # the budget is exhausted: no failure, and no use in trying again
        retries=3,  # another job works in the project (exit code 4), or a failure that passes
        retry_delay=timedelta(minutes=30),
    )
