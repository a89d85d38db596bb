"""The reward of a release by HTTP, as OpenRLHF asks for it (`--reward.remote_url`).

    POST /get_reward  {"query": […], "prompts": […], "labels": […]}
                    → {"rewards": […], "scores": […], "extra_logs": {"distance": […]}}

The request is that of `SingleTurnAgentExecutor._fetch_rewards_via_http`, the answer that of
`openrlhf/cli/serve_rm.py`. A query is a prompt and its response in one text, decoded with special
tokens; `labels` are answers to compare with, and not read. OpenRLHF sends every query by itself, so
queries that wait are scored together, in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import socket
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from labelguard.analysis.reward import ReleaseReward
from labelguard.cli.terminal import StopSignal, echo
from labelguard.errors import LabelguardError
from labelguard_trainer.alignment.rewards import compute_rewards

PATH = "/get_reward"
# What chat models end a response with; OpenRLHF leaves it in the query.
ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<|return|>", "<end_of_turn>", "<eos>", "</s>", "<｜end▁of▁sentence｜>"),
)
_SLOT = "{prompt}"
_TAIL = 64  # characters by which a prompt is recognized whose beginning was cut off
_SHUTDOWN_SECONDS = 30
_HEARD_OUT = 4  # times too large a body is read to its end, so that its sender hears why

# (prompt, response) as the release knows them.
Pair = tuple[str, str]


@dataclass(frozen=True)
class RewardLimits:
    """Bounds of one server.

    `body_bytes` and `queries` are those of one request, `held_bytes` that of all bodies in memory,
    `batch` how many queries of several requests are scored at once.
    """

    body_bytes: int = 32 << 20
    queries: int = 4096
    held_bytes: int = 512 << 20
    batch: int = 1024
    connections: int = 8192


class RefusedRequest(Exception):
    """An answer other than 200. Its reason holds nothing of the request."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class PromptTemplate:
    """The text that a trainer writes around a prompt and behind a response.

    Example:
        >>> PromptTemplate("Q: {prompt} A:").split("Q: tea? A: yes</s>", "Q: tea? A:")
        ('tea?', ' yes')
    """

    text: str = _SLOT
    ends: tuple[str, ...] = ENDS

    def __post_init__(self) -> None:
        if self.text.count(_SLOT) != 1:
            raise LabelguardError(f"--prompt-template must hold {_SLOT} once")

    def split(self, query: str, prompt: str) -> Pair:
        """Return the user's prompt and the response. Raises `RefusedRequest`."""
        response = query[_end_of_prompt(query, prompt) :]
        end = len(response)
        while mark := next((m for m in self.ends if response.endswith(m, 0, end)), None):
            end -= len(mark)
        before, _, after = self.text.partition(_SLOT)
        if not (prompt.startswith(before) and prompt.endswith(after)) or (
            len(prompt) < len(before) + len(after)
        ):
            raise RefusedRequest(422, "a prompt does not follow --prompt-template")
        return prompt[len(before) : len(prompt) - len(after)], response[:end]


def _end_of_prompt(query: str, prompt: str) -> int:
    """Return where the response begins. Raises `RefusedRequest` if that cannot be known."""
    if query.startswith(prompt):
        return len(prompt)
    # OpenRLHF cuts the beginning of a prompt that is too long, possibly within a character.
    tail = prompt[-_TAIL:]
    end = query.find(tail) + len(tail)
    if len(tail) == _TAIL <= end and prompt.endswith(
        query[:end].lstrip("\N{REPLACEMENT CHARACTER}")
    ):
        return end
    raise RefusedRequest(422, "a query does not begin with its prompt")


@dataclass(frozen=True)
class RewardServerSummary:
    """Counts of a reward server that has ended."""

    # where it listened
    address: str
    # the release, or the model, whose reward it gave
    source: str
    # rewards that were given
    rewards: int
    # requests that were refused
    refused_requests: int


class _RewardJob:
    """Pairs of one request, and their rewards once they are computed."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.rewards: NDArray[np.float64] | None = None


class RewardBatches:
    """Scores what waits together, in one thread."""

    def __init__(self, reward: ReleaseReward, most: int) -> None:
        self._reward, self._most = reward, most
        self._jobs: deque[_RewardJob] = deque()
        self._thread = ThreadPoolExecutor(1, "labelguard-reward")

    async def score(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return what `compute_rewards` does. Raises what the reward raises of these pairs."""
        job = _RewardJob(pairs)
        self._jobs.append(job)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._work, job)

    def _work(self, job: _RewardJob) -> NDArray[np.float64]:
        """Score a job and those that came after it, which then find their rewards: the thread."""
        if job.rewards is None:
            self._jobs.remove(job)
            jobs, size = [job], len(job.pairs)
            while self._jobs and (size := size + len(self._jobs[0].pairs)) <= self._most:
                jobs.append(self._jobs.popleft())
            try:
                rewards = self.compute([pair for one in jobs for pair in one.pairs])
            except Exception:  # of one of them; each is answered for its own
                self._jobs.extendleft(reversed(jobs[1:]))
                return self.compute(job.pairs)
            ends = np.cumsum([len(one.pairs) for one in jobs])
            for one, part in zip(jobs, np.split(rewards, ends[:-1], axis=1), strict=True):
                one.rewards = part
        assert job.rewards is not None
        return job.rewards

    def compute(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return the same at once, in this thread."""
        return compute_rewards(self._reward, *zip(*pairs, strict=True))


class RewardService:
    """Answers requests for rewards; `loopback` only those that name this machine as its own."""

    def __init__(
        self,
        reward: ReleaseReward,
        template: PromptTemplate,
        limits: RewardLimits,
        *,
        loopback: bool,
    ) -> None:
        self._template, self._limits, self._loopback = template, limits, loopback
        self._batches = RewardBatches(reward, limits.batch)
        self._held, self._logged = 0, -np.inf
        self.rewards = self.refusals = 0
        # Everything is loaded now: a release that is altered later changes no reward.
        if not np.isfinite(self._batches.compute([("Is it?", "It is.")])).all():
            raise LabelguardError(f"rewards of {reward.__name__} are no finite numbers")

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route(PATH, self._answer, methods=["POST"]),
            Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
        ]
        return Starlette(routes=routes)

    async def _answer(self, request: Request) -> Response:
        parts: list[bytes] = []  # what of it is in memory
        try:
            self._check_origin(request)
            await self._read(request, parts)
            pairs = self._parse(b"".join(parts))
            result = await self._batches.score(pairs)
            if not np.isfinite(result).all():
                raise RefusedRequest(500, "a reward is no finite number")
        except RefusedRequest as error:
            return self._refuse(error.status, str(error))
        except ClientDisconnect:
            return self._refuse(408, "the body ended too early")
        except Exception as error:  # its message may hold a text
            place = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            return self._refuse(500, f"rewards cannot be computed: {why}")
        finally:
            self._held -= sum(map(len, parts))
        self.rewards += len(pairs)
        rewards, *distances = result.tolist()
        logs = {"distance": distances[0]} if distances else {}
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": logs})

    def _check_origin(self, request: Request) -> None:
        """Raise `RefusedRequest` for what a page in a browser sends, by whatever name it asks."""
        host = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]")
        if "origin" in request.headers or (self._loopback and not is_loopback(host)):
            raise RefusedRequest(403, "asked from another origin, or by another name than loopback")

    async def _read(self, request: Request, parts: list[bytes]) -> None:
        """Append the body to `parts`. Raises `RefusedRequest`."""
        most, length = self._limits.body_bytes, 0
        async for part in request.stream():
            length += len(part)
            if length <= most:
                parts.append(part)
                self._held += len(part)
            if self._held > self._limits.held_bytes:
                raise RefusedRequest(503, "too many requests wait")
            if length > _HEARD_OUT * most:
                break
        if length > most:
            raise RefusedRequest(413, f"the body has more than {most:,} bytes")

    def _parse(self, body: bytes) -> list[Pair]:
        try:
            content = json.loads(body)
            queries, prompts = content["query"], content["prompts"]
            for texts in (queries, prompts):
                "".join(texts).encode()
            is_list = isinstance(queries, list) and isinstance(prompts, list)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_list = False
        if not is_list or len(queries) != len(prompts):
            expected = '{"query": [TEXT, …], "prompts": [TEXT, …]}, as many of each'
            raise RefusedRequest(422, f"expected {expected}")
        if not 0 < len(queries) <= self._limits.queries:
            raise RefusedRequest(413, f"expected 1 to {self._limits.queries:,} queries")
        return [self._template.split(*texts) for texts in zip(queries, prompts, strict=True)]

    def _refuse(self, status: int, why: str) -> Response:
        self.refusals += 1
        if time.monotonic() - self._logged >= 1:  # whoever is refused may come again and again
            self._logged = time.monotonic()
            echo(f"labelguard: answered {status}: {why}", err=True)
        return JSONResponse({"error": why}, status, {"connection": "close"})


def serve(
    reward: ReleaseReward,
    template: PromptTemplate | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8091,
    limits: RewardLimits | None = None,
) -> RewardServerSummary:
    """Serve a reward until SIGTERM or Ctrl-C; requests that came until then are answered.

    Raises `LabelguardError` where the address cannot be had, or the reward gives no number.
    """
    limits, loopback = limits or RewardLimits(), is_loopback(host)
    with contextlib.closing(_listen(host, port)) as listener:
        service = RewardService(reward, template or PromptTemplate(), limits, loopback=loopback)
        name, number = listener.getsockname()[:2]
        address = f"http://{f'[{name}]' if ':' in name else name}:{number}{PATH}"
        config = uvicorn.Config(
            service.application(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        echo(f"labelguard: rewards of {reward.__name__} are at {address}", err=True)
        if not loopback:
            echo("labelguard: note: whoever reaches it is answered, unencrypted", err=True)
        # Told to end, it ends well; the signal, which uvicorn raises once more, has done its work.
        with contextlib.suppress(StopSignal, KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    return RewardServerSummary(address, reward.__name__, service.rewards, service.refusals)


def is_loopback(host: str) -> bool:
    """Return True for a name or an address that only this machine has for itself."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends what it writes at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise LabelguardError(
            f"cannot listen on {host}, port {port}: {error.strerror}; name another: --host, --port"
        ) from None
    return listener
