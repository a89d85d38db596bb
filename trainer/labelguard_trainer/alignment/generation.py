"""Responses of a language model to public prompts: sampled here, or by a server.

    generate("base", ["Why is the sky blue?"], 4, max_new_tokens=128)

A text is continued as it stands, a chat is answered in the chat template of the model. What was
trained on texts is asked in texts, what was trained on chats in chats.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import numpy as np

from labelguard import extras
from labelguard.analysis.reward import Content
from labelguard.errors import LabelguardError
from labelguard.text import Progress, no_progress, pluralize
from labelguard_trainer.features.encoder import batch_by_tokens
from labelguard_trainer.training import models

# A directory, the id of a hub, or a model of transformers with its tokenizer.
Model: TypeAlias = str | Path | tuple[Any, Any]

_TOKENS_PER_BATCH = {"cpu": 1 << 14, "cuda": 1 << 16}  # with padding, and those to be generated
# Requests at once: servers join them to batches of their own.
_AT_ONCE = 32
_WAITS = (0.5, 1.0, 2.0, 4.0, 0.0)  # seconds after each try, at most
# The most that one request may take: a long response of a busy server.
_REQUEST_SECONDS = 600.0
_HINTS = {
    400: "the server refuses the prompt or a setting; is it too long for the model?",
    401: "check OPENAI_API_KEY",
    403: "check OPENAI_API_KEY",
    404: "check the url, and the name by which the server knows the model",
}


@dataclass(frozen=True)
class SamplingSettings:
    """The way in which responses are drawn.

    `temperature` 0 takes the likeliest token each time; `top_p` draws from the likeliest tokens
    that have this probability together.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise LabelguardError(f"max_new_tokens must be at least 1, found {self.max_new_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise LabelguardError(f"temperature must be 0 or more, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise LabelguardError(f"top_p must be above 0 and at most 1, found {self.top_p}")

    def seed_of(self, part: int) -> int:
        """Return the seed, 31 bits, of one part of what is drawn."""
        digest = hashlib.sha256(f"{self.seed} {part}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1


def wrap_like_prompt(prompt: Content, text: str) -> Content:
    """Return a response of the kind of its prompt."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def generate(
    model: Model,
    prompts: Sequence[Content],
    n: int,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    url: str | None = None,
    progress: Progress = no_progress,
) -> list[list[Content]]:
    """Return `n` responses of a model to each prompt, in the order of the prompts.

    `prompts` are texts or chats (lists of messages of role and content), and each response is of
    the same kind: a text, or a chat of one message of the assistant. `model` is a directory, an id
    of a hub, or a loaded model with its tokenizer, as `(model, tokenizer)`; it runs on a GPU where
    there is one. With `url`, `model` is the name by which a server that speaks like OpenAI's knows
    it, and OPENAI_API_KEY is sent, if it is set.

    On a CPU the same call gives the same responses. Raises `LabelguardError` for a model that
    cannot be loaded or reached, and, before anything is generated, for a prompt that leaves no room
    for `max_new_tokens` in the model's window.

    Example:
        >>> generate("base", ["tea?"], 2, max_new_tokens=8)
        [[' yes', ' no']]
    """
    sampling = SamplingSettings(max_new_tokens, temperature, top_p, seed)
    responder = open_responder(model, url)
    responder.check(prompts, sampling)
    return responder.respond(prompts, n, sampling, progress)


def open_responder(model: Model, url: str | None = None) -> LocalModel | ServedModel:
    """Return what answers: a model, or the server at `url`, which knows the model by its name."""
    extras.require_extra("train", "generation")
    if url is not None:
        if isinstance(model, tuple):
            raise LabelguardError("a server knows a model by its name: give that with url")
        return ServedModel(str(model), url)
    return LocalModel(model)


@dataclass(frozen=True)
class LocalModel:
    """A model of transformers in this process, loaded at first use."""

    model: Model

    @cached_property
    def _tokenizer(self) -> Any:
        if isinstance(self.model, tuple):
            return self.model[1]
        return models.load_tokenizer(str(self.model))

    @cached_property
    def _network(self) -> Any:
        """The model itself; on a GPU in the type that it was stored in."""
        if isinstance(self.model, tuple):
            return self.model[0]
        import torch

        from labelguard_trainer.training.reporting import silence_libraries

        on_gpu = torch.cuda.is_available()
        with silence_libraries():
            models.check_weights_complete("dpo", str(self.model), {})
            own = {"dtype": "auto"} if on_gpu else {}
            network = models.load_model("dpo", str(self.model), **own)
        return network.to("cuda" if on_gpu else "cpu").eval()

    def check(self, prompts: Sequence[Content], sampling: SamplingSettings) -> None:
        """Raise `LabelguardError` for a chat without a template, or a prompt that is too long."""
        window = getattr(self._network.config.get_text_config(), "max_position_embeddings", None)
        room = (window or 1 << 62) - sampling.max_new_tokens
        lengths = [len(ids) for ids in self._tokenize(prompts)]
        long = [row for row, length in enumerate(lengths) if length > room]
        if long:
            raise LabelguardError(
                f"{pluralize(len(long), 'prompt')} of {len(lengths):,} leave no room in the "
                f"model's window of {window:,} tokens: prompt {long[0] + 1} has "
                f"{lengths[long[0]]:,}, and {sampling.max_new_tokens:,} new ones may follow; "
                "leave them out, or let responses be shorter"
            )

    def respond(
        self, prompts: Sequence[Content], n: int, sampling: SamplingSettings, progress: Progress
    ) -> list[list[Content]]:
        """Return `n` responses to each prompt; torch's own random state stays as it was."""
        import torch

        network, device = self._network, self._network.device
        inputs = [ids for ids in self._tokenize(prompts) for _ in range(n)]
        texts = [""] * len(inputs)
        limit = _TOKENS_PER_BATCH["cuda" if device.type == "cuda" else "cpu"]
        lengths = np.array([len(ids) + sampling.max_new_tokens for ids in inputs])
        order = np.argsort(-lengths, kind="stable")
        was_training = network.training
        network.eval()
        count = 0
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for number, rows in enumerate(batch_by_tokens(order, lengths, limit)):
                progress("generating", count / len(inputs))
                torch.manual_seed(sampling.seed_of(number))
                batch = [inputs[row] for row in rows]
                for row, text in zip(rows, self._continue(batch, sampling), strict=True):
                    texts[row] = text
                count += len(rows)
        network.train(was_training)
        progress("generating", 1.0)
        return [
            [wrap_like_prompt(prompt, text) for text in texts[row * n : (row + 1) * n]]
            for row, prompt in enumerate(prompts)
        ]

    def _tokenize(self, prompts: Sequence[Content]) -> list[list[int]]:
        tokenizer = self._tokenizer
        chats = [prompt for prompt in prompts if not isinstance(prompt, str)]
        if chats and not tokenizer.chat_template:
            raise LabelguardError(
                "the model's tokenizer has no chat template: give prompts as texts, or take a "
                "model for chats"
            )
        options = {"tokenize": False, "add_generation_prompt": True}
        with models.shorten_library_errors(
            "the prompts cannot be put into the model's chat template"
        ):
            shown = [
                prompt
                if isinstance(prompt, str)
                else tokenizer.apply_chat_template(prompt, **options)
                for prompt in prompts
            ]
        # A template writes the special tokens itself.
        ids = [
            tokenizer(text, add_special_tokens=isinstance(prompt, str), verbose=False)["input_ids"]
            for prompt, text in zip(prompts, shown, strict=True)
        ]
        first = tokenizer.bos_token_id
        return [own or [tokenizer.eos_token_id if first is None else first] for own in ids]

    def _continue(self, batch: Sequence[list[int]], sampling: SamplingSettings) -> list[str]:
        """Return what follows each input, up to the end of its text."""
        import torch
        from transformers import GenerationConfig

        network, tokenizer = self._network, self._tokenizer
        ends = self._list_end_tokens()
        padding = ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        longest = max(map(len, batch))
        # On the left, so that what is new follows each prompt at once.
        ids = torch.tensor([[padding] * (longest - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in batch])
        drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        # All that a model's own settings could add to the distribution is named.
        config = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=sampling.temperature > 0,
            **(drawn if sampling.temperature > 0 else {"temperature": 1.0, "top_p": 1.0}),
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            num_beams=1,
            num_return_sequences=1,
            eos_token_id=ends,
            pad_token_id=padding,
        )
        with torch.no_grad(), models.shorten_library_errors("the model cannot generate"):
            tokens = network.generate(
                input_ids=ids.to(network.device),
                attention_mask=mask.to(network.device),
                generation_config=config,
            )
        new = tokens[:, longest:].tolist()
        own = [list(takewhile(lambda token: token not in ends, row)) for row in new]
        return [tokenizer.decode(row, skip_special_tokens=True) for row in own]

    def _list_end_tokens(self) -> list[int]:
        """Return the tokens that end a response: the tokenizer's, and those of the model."""
        own = self._network.generation_config.eos_token_id
        several = own if isinstance(own, list) else [own]
        ends = {self._tokenizer.eos_token_id, *several} - {None}
        if not ends:
            raise LabelguardError("the model has no token that ends a text (eos_token)")
        return sorted(ends)


@dataclass(frozen=True)
class ServedModel:
    """A model that a server at `url` knows by its name: vLLM, SGLang, llama.cpp, … The fast way.

    One request a prompt, several at once. What is sent is a public prompt; the key of
    OPENAI_API_KEY goes into the header alone, and into no message.
    """

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
            client = httpx.Client(base_url=base, headers=headers, timeout=_REQUEST_SECONDS)
        except (httpx.InvalidURL, UnicodeError, ValueError):
            raise LabelguardError("--url is no url, or OPENAI_API_KEY no key; check them") from None

        def answer(numbered: tuple[int, Content]) -> list[Content]:
            number, prompt = numbered
            path, body = _build_request(self.name, prompt, n, sampling, sampling.seed_of(number))
            texts = _extract_texts(_post_with_retries(client, path, body), n)
            return [wrap_like_prompt(prompt, text) for text in texts]

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


def _build_request(
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


def _post_with_retries(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
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


def _extract_texts(payload: Any, n: int) -> list[str]:
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
