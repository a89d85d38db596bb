"""The reward server, asked as OpenRLHF asks, and as nobody should."""

import asyncio
import json
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner
from labelguard_trainer.alignment import openrlhf
from labelguard_trainer.alignment.openrlhf import PromptTemplate, RefusedRequest
from starlette.requests import Request
from support.reward_servers import serving

from labelguard.cli.main import main

CHAT = r"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
SECRET = "never-in-a-log"


@pytest.fixture(scope="module")
def server(release):
    with serving(release.path) as server:
        yield server


def test_a_query_is_answered_as_openrlhf_reads_it(server, reward):
    status, answer = server.rewards(["tea?yes good</s>"], ["tea?"])
    assert status == 200 and answer.keys() == {"rewards", "scores", "extra_logs"}
    expected = reward.score(["tea?"], ["yes good"])
    np.testing.assert_allclose(answer["rewards"], expected, rtol=1e-6)
    assert answer["scores"] == answer["rewards"]
    distance = reward.distances(["tea?"], ["yes good"])
    np.testing.assert_allclose(answer["extra_logs"]["distance"], distance, rtol=1e-6)


def test_a_batch_has_one_reward_for_each_query_in_its_order(server):
    texts = ["yes", "no", "good", "bad", ""] * 40
    queries = [f"tea?{text}" for text in texts]
    _, together = server.rewards(queries, ["tea?"] * len(texts))
    for query, value in list(zip(queries, together["rewards"], strict=True))[:5]:
        np.testing.assert_allclose(server.rewards([query], ["tea?"])[1]["rewards"], [value])
    assert together["rewards"][:5] == together["rewards"][-5:]


def test_requests_at_once_get_their_own_rewards(server, reward):
    texts = [f"{'yes ' * (row % 7)}no {row}" for row in range(120)]
    with ThreadPoolExecutor(24) as threads:
        each = threads.map(lambda text: server.rewards([f"tea?{text}"], ["tea?"]), texts)
    values = [answer["rewards"][0] for _, answer in each]
    np.testing.assert_allclose(values, reward.score(["tea?"] * 120, texts), rtol=1e-5)


@pytest.mark.slow
def test_what_a_trainer_writes_around_texts_is_taken_off(release, reward):
    before, after = CHAT.replace(r"\n", "\n").split("{prompt}")
    prompt = f"{before}tea?{after}"
    with serving(release.path, "--prompt-template", CHAT) as server:
        _, answer = server.rewards([f"{prompt}yes<|im_end|><|endoftext|>"], [prompt])
        np.testing.assert_allclose(answer["rewards"], reward.score(["tea?"], ["yes"]), rtol=1e-6)
        assert server.rewards(["tea?yes"], ["tea?"])[0] == 422


def test_the_response_follows_a_prompt_that_was_cut():
    template = PromptTemplate()
    prompt = "".join(f"line {number}\n" for number in range(99))
    assert template.split(f"{prompt[200:]}yes", prompt) == (prompt, "yes")
    assert template.split(f"\N{REPLACEMENT CHARACTER}{prompt[200:]}yes", prompt)[1] == "yes"
    for query in ("yes", f"{prompt[-20:]}yes", f"other{prompt[200:]}yes"):
        with pytest.raises(RefusedRequest, match="begin with its prompt"):
            template.split(query, prompt)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"query": ["tea? yes"]}',
        b'{"query": "tea? yes", "prompts": "tea?"}',
        b'{"query": ["tea? yes"], "prompts": []}',
        b'{"query": [["tea? yes"]], "prompts": [[]]}',
        b'{"query": [1], "prompts": [2]}',
        b'{"query": ["\\ud800"], "prompts": [""]}',
        b'{"query": [null], "prompts": [null]}',
    ],
)
def test_a_malformed_request_is_refused_in_one_line(server, body):
    status, answer = server.post(body)
    assert status == 422 and answer["error"].startswith("expected {")


def test_a_query_without_its_prompt_is_refused_and_neither_answer_nor_log_holds_texts(release):
    with serving(release.path) as server:
        status, answer = server.rewards([f"{SECRET} yes"], [f"{SECRET}?"])
        assert (status, answer) == (422, {"error": "a query does not begin with its prompt"})
        assert server.rewards([f"{SECRET} yes"], [SECRET])[0] == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(f"GET /{SECRET} HTTP/1.1\r\nhost: {SECRET}\r\n\r\n".encode())
            assert connection.recv(99).startswith(b"HTTP/1.1 404 ")
        code, printed = server.stop()
    assert code == 0 and printed.endswith("gave 1 reward; 1 request refused.\n")
    assert SECRET not in "".join(server.lines) and len(server.lines) == 2


def test_no_more_is_read_than_a_request_may_have(server):
    many = ["a"] * 4097
    assert server.rewards(many, many)[0] == 413
    assert server.rewards([], [])[0] == 413
    assert server.rewards(["a" * (33 << 20)], ["a"])[0] == 413
    assert server.rewards(["a"], ["a"])[0] == 200


def test_a_body_that_comes_too_slowly_is_refused(monkeypatch):
    monkeypatch.setattr(openrlhf, "BODY_SECONDS", 0.01)

    async def wait_for_ever():
        await asyncio.Event().wait()

    with pytest.raises(RefusedRequest) as refused:
        asyncio.run(openrlhf._read_body(Request({"type": "http"}, wait_for_ever)))
    assert refused.value.status == 408


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://example.org"},
        {"origin": "null"},
        {"host": "example.org"},
        {"host": "example.org:8091"},
        {"host": "127.0.0.1.example.org"},
        {"host": "[::1"},
    ],
)
def test_pages_of_browsers_get_no_rewards(server, headers):
    status, answer = server.post(b'{"query": ["a"], "prompts": ["a"]}', **headers)
    assert status in (400, 403) and "rewards" not in answer


def test_other_methods_and_paths_are_none(server):
    assert server.request("GET", "/healthz") == (200, {"status": "ok"})
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /get_reward HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(99).startswith(b"HTTP/1.1 405 ")


@pytest.mark.slow
def test_a_reward_that_is_no_finite_number_is_an_error_of_its_request_alone(release):
    texts = ["yes", "long " * 99] * 8
    with serving(release.path, "--mix", "length=5e307") as server, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda text: server.rewards([text], [""]), texts))
    assert [status for status, _ in answers] == [200, 500] * 8
    assert answers[1][1] == {"error": "a reward is no finite number"}


def test_a_release_that_is_altered_while_it_is_served_changes_no_reward(release, tmp_path):
    copy = shutil.copytree(release.path, tmp_path / 'it\'s "a" copy')
    with serving(copy) as server:
        before = server.rewards(["yes"], [""])
        for name in ("head.npz", "data.parquet"):
            (copy / name).write_bytes(b"another")
        assert server.rewards(["yes", "good"], ["", ""])[1]["rewards"][:1] == before[1]["rewards"]
    result = CliRunner().invoke(main, ["reward", "serve", str(copy), "--port", "0"])
    assert result.exit_code == 1 and result.output.count("\n") == 1
    assert "was altered since the release was committed" in result.output


def test_a_request_that_came_before_the_end_is_answered(release):
    body = json.dumps({"query": ["tea?yes"], "prompts": ["tea?"], "labels": [None]}).encode()
    with serving(release.path) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            head = f"content-length: {len(body)}\r\nexpect: 100-continue\r\n"
            connection.sendall(
                f"POST /get_reward HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode()
            )
            assert connection.recv(99).startswith(b"HTTP/1.1 100 ")  # it is being read
            server.process.send_signal(signal.SIGTERM)
            connection.sendall(body)
            assert connection.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
        assert server.process.wait(60) == 0


def test_what_cannot_be_served_is_told_in_one_line(server, release):
    def run(*options):
        return CliRunner().invoke(main, ["reward", "serve", str(release.path), *options])

    taken = run("--port", str(server.port))
    assert taken.exit_code == 1 and "name another: --host, --port" in taken.output
    assert "must hold {prompt} once" in run("--prompt-template", "Q:").output
    for wrong in ("length", "length=", "length=nan", "=1"):
        assert run("--mix", wrong).exit_code == 2
    missing = CliRunner().invoke(main, ["reward", "serve", "../../etc/passwd"])
    assert missing.exit_code == 1 and missing.output.startswith("labelguard: ")
