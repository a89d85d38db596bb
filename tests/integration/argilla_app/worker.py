"""Argilla's background jobs, webhooks among them, one after the other."""

import database_search as database_search  # registers itself, before jobs look for it
from argilla_server.jobs.queues import DEFAULT_QUEUE, HIGH_QUEUE, REDIS_CONNECTION
from rq import SimpleWorker

SimpleWorker([HIGH_QUEUE, DEFAULT_QUEUE], connection=REDIS_CONNECTION).work(with_scheduler=True)
