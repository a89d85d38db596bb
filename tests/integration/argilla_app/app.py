"""Argilla's application with `database_search` as its search engine; run by uvicorn."""

import database_search as database_search  # registers itself, before the application looks for it
from argilla_server._app import app as app
