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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from labelguard.analysis.reward import ReleaseReward
from labelguard.cli import terminal
from labelguard.cli.terminal import echo
from labelguard.errors import LabelguardError
from labelguard_trainer.alignment.rewards import compute_rewards_and_distances

PATH = "/get_reward"
# What chat models end a response with; OpenRLHF leaves it in the query.
ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<|return|>", "<end_of_turn>", "<eos>", "</s>", "<｜end▁of▁sentence｜>"),
)
_SLOT = "{prompt}"
_TAIL = 64  # characters by which a prompt is recognized whose beginning was cut off
# Of one request.
_BYTES = 32 << 20
_QUERIES = 4096
BODY_SECONDS = 60
# So many refusals are told one by one; of more, those whose number is a power of two.
_SHOWN_REFUSALS = 100

# (prompt, response) as the release knows them.
Pair: TypeAlias = tuple[str, str]
Rewards: TypeAlias = NDArray[np.float64]


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
        response = query[_find_end_of_prompt(query, prompt) :]
        end = len(response)
        while mark := next((m for m in self.ends if response.endswith(m, 0, end)), None):
            end -= len(mark)
        before, _, after = self.text.partition(_SLOT)
        if not (prompt.startswith(before) and prompt.endswith(after)) or (
            len(prompt) < len(before) + len(after)
        ):
            raise RefusedRequest(422, "a prompt does not follow --prompt-template")
        return prompt[len(before) : len(prompt) - len(after)], response[:end]


def _find_end_of_prompt(query: str, prompt: str) -> int:
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


class RewardService:
    """Answers requests for rewards; `loopback` only those that name this machine as its own."""

    def __init__(self, reward: ReleaseReward, template: PromptTemplate, *, loopback: bool) -> None:
        self._reward, self._template, self._loopback = reward, template, loopback
        self._waiting: list[tuple[list[Pair], asyncio.Future[Rewards]]] = []
        self._computing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "labelguard-reward")
        self.rewards = self.refusals = 0
        # Everything is loaded now: a release that is altered later changes no reward.
        if not np.isfinite(compute_rewards_and_distances(reward, ["Is it?"], ["It is."])).all():
            raise LabelguardError(f"rewards of {reward.__name__} are no finite numbers")

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route(PATH, self._answer, methods=["POST"]),
            Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
        ]
        return Starlette(routes=routes)

    async def _answer(self, request: Request) -> Response:
        try:
            self._check_origin(request)
            pairs = self._parse(await _read_body(request))
            result = await self._score_in_batch(pairs)
            if not np.isfinite(result).all():
                raise RefusedRequest(500, "a reward is no finite number")
        except RefusedRequest as error:
            return self._refuse(error.status, str(error))
        except ClientDisconnect:
            return self._refuse(408, "the body ended too early")
        except Exception as error:  # its message may hold a text, and its place a path
            return self._refuse(500, f"rewards cannot be computed: {type(error).__name__}")
        self.rewards += len(pairs)
        rewards, *distances = result.tolist()
        logs = {"distance": distances[0]} if distances else {}
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": logs})

    async def _score_in_batch(self, pairs: list[Pair]) -> Rewards:
        """Return as `compute_rewards_and_distances`, together with the pairs of all who wait."""
        own: asyncio.Future[Rewards] = asyncio.get_running_loop().create_future()
        self._waiting.append((pairs, own))
        async with self._computing:
            jobs, self._waiting = self._waiting, []
            if jobs:
                await self._score_all(jobs)
        return await own

    async def _score_all(self, jobs: Sequence[tuple[list[Pair], asyncio.Future[Rewards]]]) -> None:
        every = [pair for pairs, _ in jobs for pair in pairs]
        ends = np.cumsum([len(pairs) for pairs, _ in jobs])
        compute = partial(compute_rewards_and_distances, self._reward, *zip(*every, strict=True))
        try:
            rewards = await asyncio.get_running_loop().run_in_executor(self._thread, compute)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0][1].set_exception(error)
            else:  # of one of them; each is answered for its own
                for job in jobs:
                    await self._score_all([job])
            return
        for (_, future), part in zip(jobs, np.split(rewards, ends[:-1], axis=1), strict=True):
            future.set_result(part)

    def _check_origin(self, request: Request) -> None:
        """Raise `RefusedRequest` for what a page in a browser sends, by whatever name it asks."""
        host = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]")
        if "origin" in request.headers or (self._loopback and not is_loopback(host)):
            raise RefusedRequest(403, "asked from another origin, or by another name than loopback")

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
        if not 0 < len(queries) <= _QUERIES:
            raise RefusedRequest(413, f"expected 1 to {_QUERIES:,} queries")
        return [self._template.split(*texts) for texts in zip(queries, prompts, strict=True)]

    def _refuse(self, status: int, why: str) -> Response:
        self.refusals += 1
        if self.refusals <= _SHOWN_REFUSALS or self.refusals.bit_count() == 1:
            echo(f"labelguard: answered {status}: {why} ({self.refusals:,} refused)", err=True)
        return JSONResponse({"error": why}, status, {"connection": "close"})


async def _read_body(request: Request) -> bytes:
    """Return the body. Raise `RefusedRequest` for a long one, once its sender can hear why, and for
    a slow one.
    """
    parts, length = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                length += len(part)
                if length <= _BYTES:
                    parts.append(part)
    except TimeoutError:
        raise RefusedRequest(408, f"the body took over {BODY_SECONDS} seconds") from None
    if length > _BYTES:
        raise RefusedRequest(413, f"the body has more than {_BYTES:,} bytes")
    return b"".join(parts)


def serve(
    reward: ReleaseReward,
    template: PromptTemplate | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8091,
) -> RewardServerSummary:
    """Serve a reward until SIGTERM or Ctrl-C; requests that came until then are answered.

    Raises `LabelguardError` where the address cannot be had, or the reward gives no number.
    """
    loopback = is_loopback(host)
    with contextlib.closing(terminal.open_listener(host, port)) as listener:
        service = RewardService(reward, template or PromptTemplate(), loopback=loopback)
        address = terminal.format_address(listener) + PATH
        echo(f"labelguard: rewards of {reward.__name__} are at {address}", err=True)
        if not loopback:
            echo("labelguard: note: whoever reaches it is answered, unencrypted", err=True)
        terminal.run_server(service.application(), listener, lifespan="off", proxy_headers=False)
    return RewardServerSummary(address, reward.__name__, service.rewards, service.refusals)


def is_loopback(host: str) -> bool:
    """Return True for a name or an address that only this machine has for itself."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
