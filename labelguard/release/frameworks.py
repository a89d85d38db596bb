"""Formats of preference data that trainers read, and how each finds the file and takes noise.

A format is a projection of the columns prompt, chosen and rejected in SQL, of texts or of chats.
Read in the trainers' own sources (versions in docs/training.md#other-trainers).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from labelguard.inputs.canonical import Content

FrameworkName: TypeAlias = Literal[
    "trl", "llama-factory", "axolotl", "openrlhf", "open-instruct", "nemo-rl", "jsonl"
]

# How an export takes flipped labels: as they are, with the rate of an unbiased loss, or with the
# probabilities of a teacher, alone or joined with the label.
Noise: TypeAlias = Literal["auto", "plain", "robust", "soft", "posterior"]
NOISES: tuple[Noise, ...] = get_args(Noise)

# Both take whether the rows are chats, and the rate of the robust loss or None.
_Command: TypeAlias = Callable[[bool, float | None], str]
_Files: TypeAlias = Callable[[bool, float | None], Mapping[str, str]]

_PAIRS = "prompt, chosen, rejected"


@dataclass(frozen=True)
class Framework:
    """A trainer: its name, the columns of texts and of chats, the file, how it is started.

    `robust`: its robust loss is unbiased. `one_answer`: it takes the last message of an answer, as
    text. `is_plain_file`: nothing trains on it but what its reader writes, so that rows keep their
    columns of noise.
    """

    title: str
    text: str
    chat: str
    command: _Command
    files: _Files = lambda is_chat, rate: {}
    file: str = "pairs.parquet"
    robust: bool = False
    one_answer: bool = False
    is_plain_file: bool = False

    def unfit_rows_sql(self, content: Content) -> str:
        """Return the condition, in SQL, of rows of this content that it cannot take."""
        if not (content.chat and self.one_answer):
            return "false"
        if content.parts:
            return "true"
        sides = (f"len({c}) = 1 AND {c}[1].role = 'assistant'" for c in ("chosen", "rejected"))
        return f"NOT ({' AND '.join(sides)})"


def _message_sql(role: str, column: str) -> str:
    return f"{{'role': '{role}', 'content': {column}}}"


def _answer_sql(column: str, *, is_text: bool) -> str:
    """Return the messages of an answer."""
    return f"[{_message_sql('assistant', column)}]" if is_text else column


def _whole_conversations_sql(prompt: str, *, is_text: bool) -> str:
    """Return chosen and rejected as whole conversations."""
    return ", ".join(
        f"list_concat({prompt}, {_answer_sql(column, is_text=is_text)}) AS {column}"
        for column in ("chosen", "rejected")
    )


def _ranked_completions_sql(*, is_text: bool) -> str:
    """Return the ranked completions of NeMo-RL."""
    ranked = (
        f"{{'rank': {rank}, 'completion': {_answer_sql(column, is_text=is_text)}}}"
        for rank, column in enumerate(("chosen", "rejected"))
    )
    return f"[{', '.join(ranked)}] AS completions"


_QUESTION = f"[{_message_sql('user', 'prompt')}]"


def _format_trl_command(is_chat: bool, rate: float | None) -> str:
    loss = f" --loss_type robust --label_smoothing {rate!r}" if rate is not None else ""
    return f"trl dpo --model_name_or_path MODEL --dataset_name DIR --output_dir OUT{loss}"


def _build_llama_factory_files(is_chat: bool, rate: float | None) -> Mapping[str, str]:
    entry: dict[str, object] = {"file_name": "pairs.parquet", "ranking": True}
    columns = {"chosen": "chosen", "rejected": "rejected"}
    if is_chat:
        roles = {f"{role}_tag": role for role in ("user", "assistant", "system")}
        entry |= {"formatting": "sharegpt", "columns": {"messages": "prompt", **columns}}
        entry["tags"] = {"role_tag": "role", "content_tag": "content", **roles}
    else:
        entry["columns"] = {"prompt": "prompt", **columns}
    return {"dataset_info.json": json.dumps({"labelguard": entry}, indent=2) + "\n"}


def _build_axolotl_files(is_chat: bool, rate: float | None) -> Mapping[str, str]:
    import yaml

    fields = {"field_chosen": "chosen", "field_rejected": "rejected"}
    kind: object = {"field_prompt": "prompt", **fields}
    more: dict[str, object] = {}
    if is_chat:
        kind, more = "chat_template.default", {"field_messages": "messages", **fields}
    dataset = {"path": "pairs.parquet", "ds_type": "parquet", "split": "train", "type": kind}
    section: dict[str, object] = {"rl": "dpo"}
    if rate is not None:
        section |= {"dpo_loss_type": ["robust"], "dpo_label_smoothing": rate}
    # Copies of a pair have sides swapped in proportion to its probability: none is a duplicate.
    section |= {"datasets": [dataset | more], "dataset_exact_deduplication": False}
    # What axolotl does not start without, to be changed.
    section |= {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "num_epochs": 1}
    section |= {"learning_rate": 1e-6}
    return {"axolotl.yaml": str(yaml.safe_dump(section, sort_keys=False))}


def _format_openrlhf_command(is_chat: bool, rate: float | None) -> str:
    keys = " ".join(f"--data.{name}_key {name}" for name in ("prompt", "chosen", "rejected"))
    template = " --data.apply_chat_template" if is_chat else ""
    return (
        "deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path MODEL "
        f"--data.dataset pairs.parquet {keys}{template} --ckpt.output_dir OUT"
    )


FRAMEWORKS: Mapping[str, Framework] = {
    "trl": Framework("TRL", _PAIRS, _PAIRS, _format_trl_command, robust=True),
    "llama-factory": Framework(
        "LLaMA-Factory",
        _PAIRS,
        "prompt, chosen[1] AS chosen, rejected[1] AS rejected",
        lambda is_chat, rate: (
            "llamafactory-cli train --stage dpo --do_train --dataset_dir . --dataset labelguard "
            "--model_name_or_path MODEL --template TEMPLATE --output_dir OUT"
        ),
        _build_llama_factory_files,
        one_answer=True,
    ),
    "axolotl": Framework(
        "axolotl",
        _PAIRS,
        "prompt AS messages, chosen, rejected",
        lambda is_chat, rate: "axolotl train axolotl.yaml --base-model MODEL --output-dir OUT",
        _build_axolotl_files,
        robust=True,
        one_answer=True,
    ),
    "openrlhf": Framework("OpenRLHF", _PAIRS, _PAIRS, _format_openrlhf_command),
    "open-instruct": Framework(
        "open-instruct",
        _whole_conversations_sql(_QUESTION, is_text=True),
        _whole_conversations_sql("prompt", is_text=False),
        lambda is_chat, rate: (
            "python open_instruct/dpo.py --model_name_or_path MODEL --mixer_list "
            "DIR/pairs.parquet 1.0 --mixer_list_splits train --loss_type dpo --output_dir OUT"
        ),
    ),
    "nemo-rl": Framework(
        "NeMo-RL",
        f"{_QUESTION} AS context, {_ranked_completions_sql(is_text=True)}",
        f"prompt AS context, {_ranked_completions_sql(is_text=False)}",
        lambda is_chat, rate: (
            "uv run examples/run_dpo.py policy.model_name=MODEL data.validation=null "
            "data.train.dataset_name=PreferenceDataset ++data.train.data_path=DIR/pairs.jsonl"
        ),
        file="pairs.jsonl",
    ),
    "jsonl": Framework(
        "a script of your own",
        f"{_PAIRS}, item_id",
        f"{_PAIRS}, item_id",
        lambda is_chat, rate: 'datasets.load_dataset("json", data_files="pairs.jsonl")',
        file="pairs.jsonl",
        is_plain_file=True,
    ),
}
