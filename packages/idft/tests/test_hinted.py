"""Hinted decoding against the published loop, generation from p and q alone, and its rules one by one."""

import pytest
import torch
from icml_idft import HintedDecoder, published_loop
from icml_idft.hinted import MARKER
from icml_idft.hinted_streams import repeats
from icml_lm import ByteTokenizer, SymbolTokenizer, generate
from small_models import ChatBytes, tiny

PROMPTS = ["1 2 3", "4 5", "7 8 9 1 2 3", "6", "2 2 2 2", "9 9 8", "1", "3 1 4 1 5"]
HINTS = ["3", "5 4 3 2 1", "1 1", "7 7 7 7", "2", "8 9", "1 2 3 4 5 6", "9"]
DIGITS = SymbolTokenizer([str(i) for i in range(10)])


def joined(prompt, hint):
    return f"{hint} {prompt}"


def decoder(model=None, **options):
    model = tiny(len(DIGITS), spread=6.0) if model is None else model
    settings = {"hinted_prompt": joined, "split": None, "beta": 0.8, "temperature": 0.9}
    return HintedDecoder(model, DIGITS, **{**settings, **options})


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "sigmoid", "beta": 3.0},
        {"mode": "piecewise"},
        {"split": "4", "top_p": 0.8},
        {"temperature": 0.0},
        {"top_p": 1.0, "vocabulary": 200},
        {"beta": 0.0},
    ],
    ids=str,
)
def test_caches_and_batches_write_what_the_published_loop_writes(options):
    subject = decoder(tiny(len(DIGITS), spread=6.0).double(), **options)
    found = subject.generate(PROMPTS[:5], HINTS[:5], 16, seeded())
    expected = published_loop(subject, PROMPTS[:5], HINTS[:5], 16, seeded())
    for a, e in zip(found, expected, strict=True):
        assert (a.ids, a.text, a.finish) == (e.ids, e.text, e.finish)
        assert a.phi_mean == pytest.approx(e.phi_mean, abs=1e-6)
        assert a.lam_mean == pytest.approx(e.lam_mean, abs=1e-6)


def test_two_models_and_transformers_write_the_same():
    p, q = tiny(len(DIGITS), spread=6.0, seed=1), tiny(len(DIGITS), spread=6.0)
    ours = decoder(q, target_model=p).generate(PROMPTS, HINTS, 12, seeded())
    slow = published_loop(decoder(q, target_model=p), PROMPTS, HINTS, 12, seeded())
    llama = decoder(q.to_llama(), target_model=p.to_llama()).generate(PROMPTS, HINTS, 12, seeded())
    assert [f.ids for f in ours] == [f.ids for f in slow] == [f.ids for f in llama]
    assert [f.ids for f in ours] != [f.ids for f in decoder(q).generate(PROMPTS, HINTS, 12, seeded())]


def test_a_batch_writes_what_its_rows_write_alone():
    """Unequal prompts and hints, in float32, with the same generator one row after the other."""
    subject = decoder()
    together = subject.generate(PROMPTS, HINTS, 16, seeded())
    generator = seeded()
    alone = [subject.generate([p], [h], 16, generator)[0] for p, h in zip(PROMPTS, HINTS, strict=True)]
    one_by_one = decoder(one_by_one=True).generate(PROMPTS, HINTS, 16, seeded())
    assert [f.ids for f in together] == [f.ids for f in alone] == [f.ids for f in one_by_one]


def test_beta_0_samples_from_the_target_alone():
    """At temperature 1 that is generation from the hinted prompt with the same uniform numbers."""
    model = tiny(len(DIGITS), spread=6.0).double()
    found = decoder(model, beta=0.0, temperature=1.0, top_p=0.9).generate(PROMPTS, HINTS, 10, seeded())
    generator = seeded()
    for prompt, hint, row in zip(PROMPTS, HINTS, found, strict=True):
        ids = torch.tensor([DIGITS.encode(joined(prompt, hint))])
        out = generate(
            model,
            ids,
            max_new_tokens=10,
            temperature=1.0,
            top_p=0.9,
            eos_id=DIGITS.eos_token_id,
            generator=generator,
        )
        assert row.ids == tuple(out.ids[0, : int(out.lengths[0])].tolist())
        assert row.lam_mean == 0.0


class Anything(SymbolTokenizer):
    """Every text of it holds the split string."""

    def decode(self, ids, **options):
        return "7"


def test_after_the_split_the_drafter_goes_on_alone():
    """All tokens but the first are generation from q with the same uniform numbers."""
    model = tiny(len(DIGITS), spread=6.0).double()
    subject = HintedDecoder(
        model,
        Anything(DIGITS.symbols[3:]),
        hinted_prompt=joined,
        split="7",
        temperature=1.0,
        top_p=0.9,
        beta=0.0,
        eos_id=10**6,
    )
    found = subject.generate(PROMPTS, HINTS, 10, seeded())
    generator = seeded()
    for prompt, row in zip(PROMPTS, found, strict=True):
        torch.rand(1, generator=generator)  # the first token's
        ids = torch.tensor([[*DIGITS.encode(prompt), row.ids[0]]])
        options = {"temperature": 1.0, "top_p": 0.9, "eos_id": 10**6, "generator": generator}
        assert row.ids[1:] == tuple(generate(model, ids, max_new_tokens=9, **options).ids[0].tolist())
        assert row.lam_mean == 0.0


def test_the_target_is_not_asked_after_the_split():
    calls = []
    target, draft = tiny(len(DIGITS), spread=6.0, seed=1), tiny(len(DIGITS), spread=6.0)
    original = target.forward
    target.forward = lambda *a, **k: (calls.append(1), original(*a, **k))[1]
    subject = decoder(draft, target_model=target, split="1", eos_id=10**6)
    found = subject.generate(["1 2"], ["3"], 30, seeded())
    place = next(i for i, t in enumerate(found[0].ids) if DIGITS.decode([t]) == "1")
    assert len(calls) == place + 1


def test_the_first_token_comes_from_the_target():
    """p and q are each sure of another token."""
    p, q = (_sure_of(token) for token in (4, 7))
    found = decoder(q, target_model=p, beta=100.0).generate(["1"], ["2"], 3, seeded())
    assert found[0].ids[0] == 4


def _sure_of(token):
    model = tiny(len(DIGITS))
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.norm.weight.fill_(1.0)
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight[token] = 10.0
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
    return model


def test_sure_targets_are_followed_and_unsure_ones_are_not():
    flat = _sure_of(4)
    with torch.no_grad():
        flat.lm_head.weight.zero_()
    sure_target = decoder(flat, target_model=_sure_of(4)).generate(["1"], ["2"], 5, seeded())[0]
    assert set(sure_target.ids) == {4}
    unsure_target = decoder(_sure_of(7), target_model=flat, beta=1.0).generate(["1"], ["2"], 5, seeded())[0]
    assert set(unsure_target.ids[1:]) == {7}
    assert unsure_target.lam_mean == pytest.approx(1.0, abs=1e-5)


def test_phi_is_the_drafters_centred_log_likelihood():
    from icml_idft import cll

    model = tiny(len(DIGITS), spread=6.0).double()
    (row,) = decoder(model).generate(["1 2 3"], ["4"], 12, seeded())
    prompt = DIGITS.encode("1 2 3")
    ids = torch.tensor([[*prompt, *row.ids]])
    mask = torch.tensor([[0] * len(prompt) + [1] * len(row.ids)])
    assert row.phi_mean == pytest.approx(float(cll(model, ids, mask).mean), abs=1e-6)


def test_answers_that_go_in_circles_end():
    assert repeats(([1, 2, 3] * 60)[:150])
    assert not repeats(list(range(150)))
    assert not repeats([1] * 33)
    assert repeats([1] * 34)
    (row,) = decoder(_sure_of(4), eos_id=10**6).generate(["1"], ["2"], 250, seeded())
    assert row.finish == "repeating"
    assert len(row.ids) == 100


def test_both_end_tokens_end_both_streams():
    (row,) = decoder(_sure_of(4), target_model=_sure_of(4), eos_id=[7, 4]).generate(["1"], ["2"], 9, seeded())
    assert row.ids == (4,)
    assert row.finish == "eos"
    assert row.text == ""


def test_the_target_thinks_up_to_the_marker_and_its_thoughts_are_not_in_the_answer():
    model = tiny(259, spread=3.0)
    subject = HintedDecoder(model, ChatBytes(), analysis=6, temperature=0.0)
    (ids,) = subject.target_prompts(["What is 1 + 1?"], ["2"])
    text = ChatBytes().decode(ids)
    assert text.startswith("<|user|>What is 1 + 1?\n\nThe correct answer")
    assert text.endswith(f"\n{MARKER}\n")
    found = subject.generate(["What is 1 + 1?"], ["2"], 5)
    assert len(found[0].ids) <= 5


def test_rewrites_are_samples():
    sampler = decoder().of("1 2", "3", max_new_tokens=8)
    first = sampler.sample(3, seed=1)
    assert sampler.sample(3, seed=1) == first
    assert sampler.sample(3, seed=2) != first
    assert sampler.sample(0, seed=1) == []
    with pytest.raises(ValueError, match="n=-1"):
        sampler.sample(-1, seed=0)


def test_a_drafter_that_never_has_a_say_is_warned_of():
    with pytest.warns(UserWarning, match="lambda was never above 0.05"):
        decoder(_sure_of(4), beta=0.01).generate(["1"], ["2"], 5, seeded())


def test_bad_arguments_are_named():
    model = tiny(len(DIGITS))
    for options, text in (
        ({"beta": -1.0}, "beta=-1.0"),
        ({"mode": "cubic"}, "mode='cubic'"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"split": "\\boxed{"}, r"split='\\\\boxed\{' cannot be written by the tokenizer"),
        ({"split": ""}, "split=''"),
        ({"target_model": tiny(5)}, "vocabularies of 5 and 13 tokens"),
        ({"vocabulary": 1}, "vocabulary=1"),
    ):
        with pytest.raises(ValueError, match=text):
            decoder(model, **options)
    subject = decoder(model)
    for arguments, text in (
        ((["1"], [" "], 4, seeded()), "the hint ' ' for the prompt '1' is empty"),
        ((["1"], [], 4, seeded()), "1 prompts and 0 hints"),
        ((["1"], ["2"], 0, seeded()), "max_new_tokens=0"),
        ((["1"], ["2"], 4, None), "pass generator=torch.Generator"),
        (([""], ["2"], 4, seeded()), "the prompt '' has no token"),
    ):
        with pytest.raises(ValueError, match=text):
            subject.generate(*arguments)
    assert subject.generate([], [], 4, seeded()) == []
    with pytest.raises(ValueError, match="needs hinted_prompt="):
        HintedDecoder(model, DIGITS, split=None, analysis=0).generate([[3, 4]], ["2"], 3, seeded())


def test_published_settings_are_the_defaults():
    subject = HintedDecoder(tiny(259), ByteTokenizer())
    found = (subject.beta, subject.mode, subject.top_p, subject.temperature, subject.split)
    assert found == (3.0, "linear", 0.95, 0.3, "\\boxed{")
    assert subject.log_vocabulary is None
    assert subject.analysis == 512
