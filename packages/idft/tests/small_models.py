"""Tiny models and tokenizers that the tests share."""

import pytest
import torch
from icml_lm import ByteTokenizer, TinyConfig, TinyLM
from icml_lm.tasks.digit_ops import tokenizer

HEADER = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.content | trim }}{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<eos>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ChatBytes(ByteTokenizer):
    """Bytes with a chat template and an end token of its own."""

    def __init__(self, template=HEADER):
        super().__init__()
        self.chat_template = template

    def apply_chat_template(self, messages, *, add_generation_prompt=False, tokenize=False):
        import jinja2

        assert not tokenize
        made = jinja2.Environment().from_string(self.chat_template)
        return made.render(messages=messages, add_generation_prompt=add_generation_prompt)

    def _encode(self, text):
        ids = []
        for i, part in enumerate(text.split("<eos>")):
            ids += [self.eos_token_id] * (i > 0) + super()._encode(part)
        return ids


def tiny(vocab=None, *, d=32, layers=2, seed=0, spread=1.0, **options):
    """A TinyLM whose distributions are far from even where ``spread`` is large."""
    size = len(tokenizer()) if vocab is None else vocab
    config = TinyConfig(vocab=size, d=d, layers=layers, heads=2, **options)
    model = TinyLM(config, seed=seed).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(spread)
    return model


@pytest.fixture
def symbols():
    return tokenizer()
