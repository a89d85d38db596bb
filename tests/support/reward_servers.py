"""`labelguard reward serve` in a process of its own, and requests as OpenRLHF makes them."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading


class RewardServer:
    """A server on a free port; `lines` are what it logged."""

    def __init__(self, release, *options):
        command = [sys.executable, "-m", "labelguard", "reward", "serve", str(release)]
        self.process = subprocess.Popen(
            [*command, *options, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.lines: list[str] = []
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line)
            if at := re.search(r"http://127\.0\.0\.1:(\d+)/get_reward", line):
                self.port = int(at[1])
                break
        else:
            raise AssertionError(self.lines)
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()

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
    server = RewardServer(release, *options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
