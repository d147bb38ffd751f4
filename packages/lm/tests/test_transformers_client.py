"""Local models as chat clients: what stands beside a question does not change its answer."""

import pytest
import torch
from icml_lm.chat_models import chat_client
from icml_lm.client import ChatRefusedError
from icml_lm.generation import generate_text
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import ByteTokenizer
from icml_lm.transformers_client import TransformersClient


class Chatting(ByteTokenizer):
    """Bytes, with a template."""

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, **template):
        text = "".join(f"[{m['role']}]{m['content']}" for m in messages)
        return text + "[assistant]" * add_generation_prompt


@pytest.fixture(scope="module")
def client():
    tokenizer = Chatting()
    model = TinyLM(TinyConfig(vocab=len(tokenizer), d=32, layers=2, heads=2), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)  # far from uniform, so that greedy choices are clear
    return TransformersClient(model, tokenizer, batch=3, name="hf:toy")


QUESTIONS = ["a", "a longer question than the first", "b c", "?", "and one more"]


def test_a_batch_answers_as_each_alone(client):
    for options in ({"temperature": 0.0}, {"temperature": 1.3, "seed": 5, "n": 3, "top_p": 0.9}):
        together = client.chat_many(QUESTIONS, max_tokens=12, **options)
        alone = [client.chat(q, max_tokens=12, **options) for q in QUESTIONS]
        assert [[c.text for c in row] for row in together] == [[c.text for c in row] for row in alone]


def test_answers_differ_by_number_and_seed_and_repeat(client):
    first = client.chat("a", temperature=1.5, seed=1, n=4, max_tokens=16)
    assert len({c.text for c in first}) == 4
    assert client.chat("a", temperature=1.5, seed=1, n=4, max_tokens=16) == first
    other = client.chat("a", temperature=1.5, seed=2, n=4, max_tokens=16)
    assert not {c.text for c in first} & {c.text for c in other}
    free = [client.chat("a", temperature=1.5, max_tokens=16)[0].text for _ in range(2)]
    assert free[0] != free[1]


def test_the_global_generator_is_left_alone(client):
    before = torch.get_rng_state()
    client.chat("a", temperature=1.0, max_tokens=4)
    assert torch.equal(before, torch.get_rng_state())


def test_costs_and_log_probabilities(client):
    (found,) = client.chat("abc", temperature=0, max_tokens=7, logprobs=True)
    rendered = "[user]abc[assistant]"
    assert found.tokens_in == len(client.tokenizer.encode(rendered))
    (text,) = generate_text(client.model, client.tokenizer, rendered, max_new_tokens=7)
    assert found.text == text.text
    assert found.token_logprobs == pytest.approx(text.logp)
    assert found.tokens_out == len(text.ids)
    assert found.finish == ("length" if text.finish == "length" else "stop")
    assert client.chat("abc", temperature=0, max_tokens=7)[0].token_logprobs is None


def test_many_are_told_as_they_are_done(client):
    places = []
    client.chat_many(QUESTIONS, max_tokens=2, temperature=0, done=places.append)
    assert sorted(places) == list(range(5))


def test_a_tokenizer_without_a_template_gets_the_contents():
    tokenizer = ByteTokenizer()
    model = TinyLM(TinyConfig(vocab=len(tokenizer), d=16, layers=1, heads=2), seed=0)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    (found,) = TransformersClient(model, tokenizer).chat(messages, temperature=0, max_tokens=3)
    assert found.tokens_in == len(tokenizer.encode("be brief\nhi"))


def test_what_cannot_be_answered(client):
    with pytest.raises(ChatRefusedError, match="no token"):
        TransformersClient(client.model, ByteTokenizer()).chat("", max_tokens=3)
    with pytest.raises(ValueError, match="without its tokenizer"):
        TransformersClient(client.model)
    with pytest.raises(ValueError, match="batch = 0"):
        TransformersClient(client.model, client.tokenizer, batch=0)
    with pytest.raises(ValueError, match="no base 'tiny:nothing'"):
        chat_client("tiny:nothing")
