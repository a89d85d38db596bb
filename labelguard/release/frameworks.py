"""Trainers that read preference data: what of a release they read, and how they are started."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

FrameworkName: TypeAlias = Literal[
    "trl", "llama-factory", "axolotl", "openrlhf", "open-instruct", "nemo-rl", "jsonl"
]

# How an export takes flipped labels: as they are, with the rate of an unbiased loss, or with the
# probabilities of a teacher, alone or joined with the label.
Noise: TypeAlias = Literal["auto", "plain", "robust", "soft", "posterior"]
NOISES: tuple[Noise, ...] = get_args(Noise)

_MESSAGES = """* REPLACE (
    [{'role': 'user', 'content': prompt}] AS prompt,
    [{'role': 'assistant', 'content': chosen}] AS chosen,
    [{'role': 'assistant', 'content': rejected}] AS rejected)"""


@dataclass(frozen=True)
class Framework:
    """A trainer: its name in messages, and the command that trains; a table of frameworks.toml.

    `columns` are a projection in SQL of prompt, chosen and rejected, `columns_of_chats` of chats
    where that is another. `as_messages`: texts become messages first. `one_answer`: of chats it
    takes answers of one message, of text. `config` is a file beside the rows. In it and in
    `command`, `{kind}` stands for `kind_of_texts` or `kind_of_chats`, and `{robust}` for `robust`
    with the rate of flips; a trainer whose robust loss is not unbiased has none. `is_plain_file`:
    nothing trains on it but what its reader writes, so that rows keep their columns of noise.
    """

    title: str
    command: str
    columns: str = "prompt, chosen, rejected"
    columns_of_chats: str = ""
    file: str = "pairs.parquet"
    config_name: str = ""
    config: str = ""
    kind_of_texts: str = ""
    kind_of_chats: str = ""
    robust: str = ""
    as_messages: bool = False
    one_answer: bool = False
    is_plain_file: bool = False

    def fill(self, template: str, is_chat: bool, rate: float | None) -> str:
        """Return `command` or `config` for rows that are chats or texts, with the rate, if any."""
        robust = "" if rate is None else self.robust.replace("{rate}", repr(rate))
        kind = self.kind_of_chats if is_chat else self.kind_of_texts
        return template.replace("{kind}", kind).replace("{robust}", robust)

    def projections(self, is_chat: bool) -> tuple[str, str]:
        """Return in SQL what the columns of a release become, one after the other."""
        return (
            _MESSAGES if self.as_messages and not is_chat else "*",
            (is_chat and self.columns_of_chats) or self.columns,
        )


FRAMEWORKS: Mapping[str, Framework] = {
    name: Framework(**table)
    for name, table in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    ).items()
}
