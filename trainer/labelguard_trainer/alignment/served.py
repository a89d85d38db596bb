"""Responses of a server that speaks like OpenAI's (vLLM, SGLang, llama.cpp, …): the fast way.

One request a prompt, several at once. What is sent is a public prompt; the key of OPENAI_API_KEY
goes into the header alone, and into no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import tenacity

from labelguard.errors import LabelguardError
from labelguard.text import Progress
from labelguard_trainer.alignment.sampling import Content, SamplingSettings, answer_like

# Requests at once: servers join them to batches of their own.
_AT_ONCE = 32
_TRIES = 5
# The most that one request may take: a long response of a busy server.
_SECONDS = 600.0
_HINTS = {
    400: "the server refuses the prompt or a setting; is it too long for the model?",
    401: "check OPENAI_API_KEY",
    403: "check OPENAI_API_KEY",
    404: "check the url, and the name by which the server knows the model",
}


class _Unavailable(Exception):
    """A failure that may pass."""


@dataclass(frozen=True)
class ServedModel:
    """A model that a server at `url` knows by its name."""

    name: str
    url: str

    def check(self, prompts: Sequence[Content], sampling: SamplingSettings) -> None:
        """Leave it to the server, which knows the model's window."""

    def respond(
        self, prompts: Sequence[Content], n: int, sampling: SamplingSettings, progress: Progress
    ) -> list[list[Content]]:
        """Return `n` responses to each prompt; the same again only if the server keeps its seed."""
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = re.sub(r"/v1/?$", "", self.url.rstrip("/")) + "/v1"
        try:
            client = httpx.Client(base_url=base, headers=headers, timeout=_SECONDS)
        except (httpx.InvalidURL, UnicodeError, ValueError):
            raise LabelguardError("--url is no url, or OPENAI_API_KEY no key; check them") from None

        def answer(numbered: tuple[int, Content]) -> list[Content]:
            number, prompt = numbered
            path, body = _request(self.name, prompt, n, sampling, sampling.seed_of(number))
            texts = _texts(_post(client, path, body), n)
            return [answer_like(prompt, text) for text in texts]

        responses = []
        with client, ThreadPoolExecutor(_AT_ONCE) as threads:
            try:
                for done, own in enumerate(threads.map(answer, enumerate(prompts))):
                    progress("generating", done / len(prompts))
                    responses.append(own)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
        progress("generating", 1.0)
        return responses


def _request(
    model: str, prompt: Content, n: int, sampling: SamplingSettings, seed: int
) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request."""
    own: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
    settings = {
        "model": model,
        "n": n,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
    }
    path = "/completions" if isinstance(prompt, str) else "/chat/completions"
    return path, own | settings


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(_Unavailable),
    stop=tenacity.stop_after_attempt(_TRIES),
    wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
    retry_error_callback=lambda state: _give_up(state),
)
def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    """Return the JSON that is answered; a server that is busy or broken is asked again."""
    try:
        answer = client.post(path, json=body)
    except httpx.TransportError as error:
        raise _Unavailable(f"cannot be reached ({type(error).__name__})") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise LabelguardError(f"the server cannot be asked: {type(error).__name__}") from None
    status = answer.status_code
    if status == 429 or status >= 500:
        raise _Unavailable(f"HTTP {status}")
    if status != 200:
        raise LabelguardError(f"POST {path}: HTTP {status}: {_HINTS.get(status, 'check the url')}")
    try:
        return answer.json()
    except ValueError:
        raise LabelguardError(f"POST {path}: expected JSON; check the url") from None


def _give_up(state: tenacity.RetryCallState) -> Any:
    error = state.outcome.exception() if state.outcome else None
    raise LabelguardError(
        f"POST {state.args[1]}: {error}; tried {_TRIES} times; check the url, and whether the "
        "server runs"
    ) from None


def _texts(payload: Any, n: int) -> list[str]:
    """Return the texts of an answer, in their order; `LabelguardError` unless there are `n`."""
    try:
        choices = sorted(payload["choices"], key=lambda choice: choice.get("index", 0))
        texts = [
            (choice["message"]["content"] or "") if "message" in choice else choice["text"]
            for choice in choices
        ]
    except (KeyError, TypeError, AttributeError):
        texts = [None]
    if len(texts) != n or not all(isinstance(text, str) for text in texts):
        raise LabelguardError(
            f"the server gave no {n} texts in the format of OpenAI; it must take `n` in a request"
        )
    return texts
