"""Responses of a language model: the same each time, of their prompts' kind, from a server."""

import string

import pytest
import torch
from labelguard_trainer.alignment.generation import generate
from support import completions, tiny_models

from labelguard.errors import LabelguardError

PROMPTS = ["tea?", "Is rain good for the bread?", "tea?", ""]
CHAT = [{"role": "user", "content": "tea?"}]
HOSTILE = "\x1b[2J\x00 ‮ tea\r\n"


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """The path of a language model with a chat template."""
    return str(tiny_models.saved(tmp_path_factory.mktemp("chatty") / "base", chat=True))


def test_the_same_call_gives_the_same_responses_and_leaves_torchs_randomness_alone(base):
    before = torch.get_rng_state()
    one, again, other = (
        generate(base, PROMPTS, 3, max_new_tokens=6, seed=seed) for seed in (1, 1, 2)
    )
    assert one == again != other
    assert [len(own) for own in one] == [3] * 4 and one[0] != one[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_are_padded_on_the_left_so_that_company_changes_no_likeliest_response(base):
    together = generate(base, PROMPTS, 1, max_new_tokens=6, temperature=0)
    alone = [generate(base, [p], 1, max_new_tokens=6, temperature=0)[0] for p in PROMPTS]
    assert together == alone


def test_samples_have_the_probabilities_of_the_model_at_temperature_1(base):
    """2,000 samples of a first token: each frequency is within 5 standard deviations, so that a
    right sampler fails less than once in 5,000 runs; the seed is given besides.
    """
    model, tokenizer = tiny_models.loaded(base), tiny_models.tokenizer()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4)
        ids = torch.tensor([tokenizer("tea?")["input_ids"]])
        likely = model(ids).logits[0, -1].softmax(0)
    model.generation_config.repetition_penalty = 3.0  # of the model's own; not of this law
    model.generation_config.top_k = 2
    [texts] = generate((model, tokenizer), ["tea?"], 2000, max_new_tokens=1)
    for letter in string.ascii_lowercase:
        p = float(likely[tokenizer.convert_tokens_to_ids(letter)])
        assert abs(texts.count(letter) / 2000 - p) < 5 * (p * (1 - p) / 2000) ** 0.5 + 1e-3


def test_a_model_in_training_is_left_as_it_was(base):
    model = tiny_models.loaded(base).train()
    settings = model.generation_config.to_dict()
    generate((model, tiny_models.tokenizer()), ["tea?"], 1, max_new_tokens=2)
    assert model.training and model.generation_config.to_dict() == settings


def test_a_response_ends_where_its_text_ends(base):
    model, tokenizer = tiny_models.loaded(base), tiny_models.tokenizer()
    with torch.no_grad():
        model.transformer.wte.weight[256] = 0
        model.transformer.wte.weight[256] += 50 * model.transformer.ln_f.bias.new_ones(32)
        model.transformer.ln_f.bias.fill_(1.0)  # <eos> is certain
    assert generate((model, tokenizer), ["tea?"], 2, max_new_tokens=5) == [["", ""]]


def test_a_chat_is_answered_by_a_message_in_the_models_template(chatty):
    [[said]] = generate(chatty, [CHAT], 1, max_new_tokens=4)
    [message] = said
    assert message["role"] == "assistant" and isinstance(message["content"], str)
    [[continued]] = generate(
        chatty, ["<|user|>tea?<eos><|assistant|>"], 1, max_new_tokens=4, temperature=0
    )
    [[[greedy]]] = generate(chatty, [CHAT], 1, max_new_tokens=4, temperature=0)
    assert greedy["content"] == continued


def test_a_chat_without_a_template_is_refused(base):
    with pytest.raises(LabelguardError, match="no chat template"):
        generate(base, [CHAT], 1, max_new_tokens=4)


def test_a_prompt_longer_than_the_window_is_named_before_anything_is_generated(base):
    with pytest.raises(LabelguardError, match=r"1 prompt of 2 .* prompt 2 has 253, and 4 new"):
        generate(base, ["tea?", "x" * 253], 1, max_new_tokens=4)
    assert generate(base, ["x" * 252], 1, max_new_tokens=4)


@pytest.mark.parametrize("settings", [{"temperature": -1}, {"top_p": 0}, {"max_new_tokens": 0}])
def test_settings_that_mean_nothing_are_refused(base, settings):
    with pytest.raises(LabelguardError, match="must be"):
        generate(base, ["tea?"], 1, **{"max_new_tokens": 1, **settings})


def test_control_characters_are_text(base):
    assert generate(base, [HOSTILE], 2, max_new_tokens=3)


def test_a_server_answers_texts_and_chats_in_their_order(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-tests")
    with completions.serving() as server:
        texts = generate("org/model", ["tea?", HOSTILE], 2, max_new_tokens=9, url=server.url)
        chats = generate("org/model", [CHAT], 2, max_new_tokens=9, url=f"{server.url}/v1/", seed=3)
    assert texts == [["tea? 0", "tea? 1"], [f"{HOSTILE} 0", f"{HOSTILE} 1"]]
    assert chats == [[[{"role": "assistant", "content": f"tea? {k}"}] for k in range(2)]]
    path, headers, body = server.requests[-1]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer sk-of-tests"
    assert body.keys() == {"model", "messages", "n", "max_tokens", "temperature", "top_p", "seed"}
    assert body["model"] == "org/model" and body["max_tokens"] == 9


def test_a_busy_server_is_asked_again(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with completions.serving([429, 503]) as server:
        assert generate("m", ["tea?"], 1, max_new_tokens=9, url=server.url) == [["tea? 0"]]
    assert len(server.requests) == 3 and "Authorization" not in server.requests[0][1]
    assert server.requests[0][2] == server.requests[2][2]


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "OPENAI_API_KEY"), (404, "the name"), (302, "url")]
)
def test_a_refusal_is_one_line_without_the_key(monkeypatch, status, hint, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-tests")
    with (
        completions.serving([status]) as server,
        caplog.at_level("DEBUG"),
        pytest.raises(LabelguardError, match=hint) as error,
    ):
        generate("m", ["tea?"], 1, max_new_tokens=9, url=server.url)
    assert "sk-of-tests" not in str(error.value) + caplog.text and len(server.requests) == 1


def test_a_server_that_ignores_n_is_refused():
    with completions.serving(most=1) as server, pytest.raises(LabelguardError, match="no 2 texts"):
        generate("m", ["tea?"], 2, max_new_tokens=9, url=server.url)


def test_a_prompt_that_a_server_refuses_ends_all_at_once():
    with completions.serving([400]) as server, pytest.raises(LabelguardError, match="HTTP 400"):
        generate("m", ["tea?"] * 200, 1, max_new_tokens=9, url=server.url)
    assert len(server.requests) < 200


def test_a_server_that_is_not_there_is_named():
    with completions.serving() as server:
        url = server.url
    with pytest.raises(LabelguardError, match=r"cannot be reached .* tried 5 times"):
        generate("m", ["tea?"], 1, max_new_tokens=9, url=url)
