"""The connector to Argilla: what it tells by webhooks and its REST interface, and releases for it.

The SDK is not used: it drops the status of responses and the ranks of equals, and logs names.
"""

from labelguard_connectors.argilla.connector import Argilla as Argilla
