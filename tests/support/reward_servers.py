"""`labelguard reward serve` in a process of its own, and requests as OpenRLHF makes them."""

import contextlib
import http.client
import json
import signal

from support import hooks


class RewardServer(hooks.Process):
    """A reward server on a free port."""

    def __init__(self, release, *options):
        fixed = ("reward", "serve", str(release), "--port", "0")
        super().__init__(*fixed, *options, ready="/get_reward")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def request(self, method, path, body=None, **headers):
        """Status and content of an answer."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(
                method, path, body, {k.replace("_", "-"): v for k, v in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")

    def post(self, body, **headers):
        return self.request("POST", "/get_reward", body, content_type="application/json", **headers)

    def rewards(self, queries, prompts):
        """What OpenRLHF's `_fetch_rewards_via_http` sends, and gets."""
        payload = {"query": queries, "prompts": prompts, "labels": [None] * len(queries)}
        return self.post(json.dumps(payload))

    def stop(self):
        """The exit code, and what it printed."""
        self.process.send_signal(signal.SIGTERM)
        printed = self.process.stdout.read()
        return self.process.wait(60), printed


@contextlib.contextmanager
def serving(release, *options):
    with RewardServer(release, *options).running() as server:
        yield server
