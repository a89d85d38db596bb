"""The connector to Argilla: what it tells by webhooks and its REST interface, and releases for it.

Answers are read without Argilla's own package: it drops the status of responses and the ranks of
equals, and logs names. Releases are published with it.
"""

from labelguard_connectors.argilla.connector import Argilla as Argilla
