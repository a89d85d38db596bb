"""Tool calls of a release reach chat templates as lists, in TRL's own trainer and in ours."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset
from jinja2.exceptions import TemplateError
from support import commands, tiny_models
from support.releases import make_release
from trl import DPOConfig, DPOTrainer

import labelguard as lg

CALL = {"type": "function", "function": {"name": "search", "arguments": {"q": "tea"}}}
# Formats calls as templates of models with tools do, and refuses the text of their JSON.
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message.tool_calls is string %}{{ raise_exception('tool calls are text') }}{% endif %}"
    "{% for call in message.tool_calls or [] %}"
    "[{{ call.function.name }}({{ call.function.arguments | tojson }})]"
    "{% endfor %}<eos>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WRITTEN = '[search({"q": "tea"})]'


def write_base(directory):
    """A model and a tokenizer whose template formats calls."""
    tiny_models.gpt2().save_pretrained(directory)
    tokenizer = tiny_models.tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    return tokenizer


@pytest.fixture
def release():
    """A release of chats of which one reply calls a tool, as does the conversation before."""
    asks = {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])}
    rows = [
        {
            "labeler_id": f"w{number % 4}",
            "prompt": [
                {"role": "user", "content": f"What of {number}?"},
                *([asks, {"role": "tool", "content": "found", "tool_call_id": "1"}]),
            ],
            "chosen": [asks],
            "rejected": [{"role": "assistant", "content": f"I do not know {number}"}],
        }
        for number in range(24)
    ]
    table = pa.Table.from_pylist(rows)
    price = {"epsilon": 20.0, "delta": 1e-5, "mechanism": "rr"}
    return make_release(table, project=lg.init("project", max_epsilon=20), **price)


def test_the_template_refuses_calls_as_text():
    tokenizer = write_base("base")
    chat = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert WRITTEN in tokenizer.apply_chat_template(chat, tokenize=False)
    chat[0]["tool_calls"] = json.dumps([CALL])
    with pytest.raises(TemplateError, match="are text"):
        tokenizer.apply_chat_template(chat, tokenize=False)


@pytest.mark.quick("trl")
@pytest.mark.parametrize("to", ["trl", "jsonl"])
def test_trls_trainer_writes_calls_by_the_template(to, release):
    tokenizer = write_base("base")
    lg.export(release.path, "exported", to=to)
    [file] = Path("exported").glob("pairs.*")
    read = Dataset.from_parquet if to == "trl" else Dataset.from_json
    rows = read(str(file), cache_dir="cache").select_columns(["prompt", "chosen", "rejected"])
    settings = DPOConfig("out", max_steps=1, report_to=[], max_length=256, use_cpu=True, bf16=False)
    trainer = DPOTrainer(
        tiny_models.loaded("base"), args=settings, train_dataset=rows, processing_class=tokenizer
    )
    prompts, chosen = (
        [tokenizer.decode(row[name]) for row in trainer.train_dataset]
        for name in ("prompt_ids", "chosen_ids")
    )
    assert all(WRITTEN in text for text in prompts)
    assert any(WRITTEN in text for text in chosen)
    trainer.train()


def test_train_dpo_writes_calls_by_the_template(release):
    write_base("base")
    Path("config.yaml").write_text("max_length: 256\nmax_steps: 1\n")
    done = commands.run(
        *("train", "dpo", str(release.path), "--model", "base", "--train-config", "config.yaml"),
        *("--output", "out"),
        code=None,
    )
    assert done.exit_code == 0, done.output
