"""Padding, supervised spans of three chat templates, and packing."""

import pytest
import torch
from icml_lm.batching import chat_prompt, collate, pack, prompt_and_answer, supervised
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import ByteTokenizer, SymbolTokenizer

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
OPEN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think></think>{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "no: 2+2?"},
    {"role": "assistant", "content": "4"},
]


class ChatBytes(ByteTokenizer):
    """Bytes with a chat template and an end token of its own."""

    def __init__(self, template):
        super().__init__()
        self.template = template

    def apply_chat_template(self, messages, *, add_generation_prompt=False, tokenize=False):
        import jinja2

        assert not tokenize
        return (
            jinja2.Environment()
            .from_string(self.template)
            .render(messages=messages, add_generation_prompt=add_generation_prompt)
        )

    def _encode(self, text):
        ids = []
        for i, part in enumerate(text.split("<eos>")):
            ids += [self.eos_token_id] * (i > 0) + super()._encode(part)
        return ids


@pytest.mark.parametrize("template", [HEADER, PLAIN, THINKING, OPEN])
def test_supervised_ids_are_the_answer_and_the_end_token(template):
    tokenizer = ChatBytes(template)
    ids, labels = supervised(tokenizer, MESSAGES)
    assert tokenizer.decode([i for i in labels if i != -100]) == "4<eos>"
    assert [a for a, b in zip(ids, labels, strict=True) if b != -100] == [i for i in labels if i != -100]
    # What stands before the answer begins with what the model will be given when it is asked.
    before = tokenizer.decode(ids[: len(ids) - 2])
    assert before.startswith(tokenizer.decode(chat_prompt(tokenizer, MESSAGES[:-1])))


@pytest.mark.parametrize("answer", ["think", "e", "2+2?", " 4 ", "<|assistant|>"])
@pytest.mark.parametrize("template", [HEADER, PLAIN, THINKING, OPEN])
def test_answers_that_occur_elsewhere_in_the_template_are_found(template, answer):
    tokenizer = ChatBytes(template)
    _, labels = supervised(tokenizer, [MESSAGES[0], {"role": "assistant", "content": answer}])
    expected = answer.strip() if template is PLAIN else answer
    assert tokenizer.decode([i for i in labels if i != -100]) == f"{expected}<eos>"


@pytest.mark.parametrize("template", [HEADER, PLAIN])
def test_every_turn_is_supervised_where_asked(template):
    tokenizer = ChatBytes(template)
    ids, labels = supervised(tokenizer, MESSAGES, turns="all")
    assert tokenizer.decode([i for i in labels if i != -100]) == "5<eos>4<eos>"
    whole = tokenizer.apply_chat_template(MESSAGES).rstrip()
    assert tokenizer.decode(ids) == whole


def test_templates_that_rewrite_history_are_named():
    with pytest.raises(ValueError, match="turns='last'"):
        supervised(ChatBytes(THINKING), MESSAGES, turns="all")
    with pytest.raises(ValueError, match="in another form"):
        supervised(ChatBytes("{{ messages[0].content }}"), MESSAGES)
    with pytest.raises(ValueError, match="not with 'user'"):
        supervised(ChatBytes(HEADER), MESSAGES[:3])


def test_prompt_and_answer_are_tokenised_apart():
    tokenizer = SymbolTokenizer("ab=", separator="")
    ids, labels = prompt_and_answer(tokenizer, "ab=", "ba")
    assert ids == [3, 4, 5, 4, 3, 2]
    assert labels == [-100, -100, -100, 4, 3, 2]
    with pytest.raises(ValueError, match="empty"):
        prompt_and_answer(tokenizer, "ab=", "")


def test_collate_pads_on_either_side():
    rows = [([5, 6, 7], [-100, 6, 7]), [8]]
    right = collate(rows, pad=0)
    assert right["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert right["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    left = collate(
        [{"input_ids": [5, 6]}, {"input_ids": [8], "labels": [-100]}], pad=0, side="left", length=3
    )
    assert left["input_ids"].tolist() == [[0, 5, 6], [0, 0, 8]]
    assert left["attention_mask"].tolist() == [[0, 1, 1], [0, 0, 1]]
    assert left["labels"].tolist() == [[-100, 5, 6], [-100, -100, -100]]
    for wrong, said in (([], "at least one"), ([([1, 2], [1])], "2 tokens and 1 labels")):
        with pytest.raises(ValueError, match=said):
            collate(wrong, pad=0)
    with pytest.raises(ValueError, match="length=1"):
        collate([[1, 2]], pad=0, length=1)


@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_a_packed_loss_is_the_sum_of_separate_losses(kind):
    generator = torch.Generator().manual_seed(0)
    model = TinyLM(TinyConfig(vocab=19, d=16, heads=2, initializer_range=0.5)).eval()
    model = model if kind == "tiny" else model.to_llama()
    rows = [torch.randint(19, (n,), generator=generator).tolist() for n in (7, 3, 5, 2, 6)]
    batch = pack(rows, length=9, pad=0)
    assert batch["input_ids"].shape == (3, 9)
    supervised_tokens = (batch["labels"] != -100).sum()
    packed = model(**batch).loss * supervised_tokens
    apart = sum(
        model(input_ids=torch.tensor([row]), labels=torch.tensor([row])).loss * (len(row) - 1) for row in rows
    )
    assert supervised_tokens == sum(len(row) - 1 for row in rows)
    torch.testing.assert_close(packed, apart, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="rows of 6"):
        pack(rows, length=6, pad=0)
