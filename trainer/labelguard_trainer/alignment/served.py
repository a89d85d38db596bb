"""Responses of a server that speaks like OpenAI's (vLLM, SGLang, llama.cpp, …): the fast way.

One request a prompt, several at once. What is sent is a public prompt; the key of OPENAI_API_KEY
goes into the header alone, and into no message.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from labelguard.errors import LabelguardError
from labelguard.text import Progress
from labelguard_trainer.alignment.sampling import Content, SamplingSettings, answer_like

# Requests at once: servers join them to batches of their own.
_AT_ONCE = 32
_WAITS = (0.5, 1.0, 2.0, 4.0, 0.0)  # seconds after each try, at most
# The most that one request may take: a long response of a busy server.
_SECONDS = 600.0
_HINTS = {
    400: "the server refuses the prompt or a setting; is it too long for the model?",
    401: "check OPENAI_API_KEY",
    403: "check OPENAI_API_KEY",
    404: "check the url, and the name by which the server knows the model",
}


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
    is_text = isinstance(prompt, str)
    return "/completions" if is_text else "/chat/completions", {
        "prompt" if is_text else "messages": prompt,
        "model": model,
        "n": n,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
    }


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    """Return the JSON that is answered; a server that is busy or broken is asked again."""
    for wait in _WAITS:
        try:
            answer = client.post(path, json=body)
        except httpx.TransportError as error:
            problem = f"cannot be reached ({type(error).__name__})"
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise LabelguardError(f"the server cannot be asked: {type(error).__name__}") from None
        else:
            problem = f"HTTP {answer.status_code}"
            if answer.status_code != 429 and answer.status_code < 500:
                break
        time.sleep(wait * random.random())
    else:
        raise LabelguardError(
            f"POST {path}: {problem}; tried {len(_WAITS)} times; check the url, and whether the "
            "server runs"
        )
    if answer.status_code != 200:
        hint = _HINTS.get(answer.status_code, "check the url")
        raise LabelguardError(f"POST {path}: {problem}: {hint}")
    try:
        return answer.json()
    except ValueError:
        raise LabelguardError(f"POST {path}: expected JSON; check the url") from None


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
