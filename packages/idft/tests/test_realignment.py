"""Realignment: what is kept, retried and left, by a decoder whose answers are known."""

import pytest
import torch
from icml_idft import HintedDecoder, Realignment, cll, realign, rejection_sample
from icml_idft.hinted import Hinted
from icml_idft.realignment import own_phi_quantile
from icml_lm import SymbolTokenizer
from small_models import tiny

DIGITS = SymbolTokenizer([str(i) for i in range(10)])
ROWS = [{"prompt": f"{i} {i}", "response": r"so \boxed{" + str(i) + "}"} for i in range(4)]


class Scripted(HintedDecoder):
    """Writes what a function of (prompt, beta) says."""

    def __init__(self, script, beta=2.0):
        super().__init__(tiny(len(DIGITS)), DIGITS, beta=beta, split=None, hinted_prompt=lambda p, h: p)
        self.script, self.calls = script, []

    def with_beta(self, beta):
        other = Scripted(self.script, beta)
        other.calls = self.calls
        return other

    def generate(self, prompts, hints, max_new_tokens, generator=None):
        self.calls += [(p, self.beta) for p in prompts]
        return [self.script(p, self.beta) for p in prompts]


def answer(text, phi=-0.01, finish="eos"):
    return Hinted(text, (1,), phi, 0.3, finish)


def test_right_answers_replace_and_wrong_ones_are_tried_again_at_half_of_beta():
    def script(prompt, beta):
        digit = prompt.split()[0]
        if digit == "1" and beta > 0.6:
            return answer(r"\boxed{7}")
        if digit == "2":
            return answer("no box")
        if digit == "3":
            return answer(r"own words \boxed{3}", phi=-2.0)
        return answer(rf"own words \boxed{{{digit}}}")

    decoder = Scripted(script)
    found = realign(ROWS, decoder, phi_min=-0.1)
    assert [f["realigned"] for f in found] == [True, True, False, False]
    assert [f["reason"] for f in found] == ["", "", "wrong", "phi"]
    assert [f["attempts"] for f in found] == [1, 3, 4, 1]
    assert [f["beta"] for f in found] == [2.0, 0.5, 0.25, 2.0]
    assert found[0]["response"] == r"own words \boxed{0}"
    assert found[0]["original"] == ROWS[0]["response"]
    assert found[2]["response"] == ROWS[2]["response"]
    assert "original" not in found[2]
    assert [beta for prompt, beta in decoder.calls if prompt == "2 2"] == [2.0, 1.0, 0.5, 0.25]


@pytest.mark.parametrize("finish", ["length", "repeating"])
def test_answers_without_an_end_are_not_taken(finish):
    found = realign(ROWS, Scripted(lambda p, b: answer(rf"\boxed{{{p[0]}}}", finish=finish)), phi_min=-1.0)
    assert {f["reason"] for f in found} == {finish}


def test_a_users_check_and_hint_are_asked():
    seen = []

    def check(row, text):
        seen.append((row["prompt"], text))
        return text == "yes"

    rows = [{"prompt": "1", "answer": "first"}, {"prompt": "2", "answer": "second"}]
    found = realign(
        rows, Scripted(lambda p, b: answer("yes" if p == "1" else "no")), check, phi_min=-1.0, retries=0
    )
    assert [f["realigned"] for f in found] == [True, False]
    assert seen == [("1", "yes"), ("2", "no")]


def test_what_becomes_of_a_row_depends_neither_on_the_batch_nor_on_the_others():
    decoder = HintedDecoder(
        tiny(len(DIGITS), spread=5.0).double(),
        DIGITS,
        split=None,
        hinted_prompt=lambda p, h: f"{h} {p}",
        beta=0.7,
        temperature=1.0,
    )
    rows = [{"prompt": str(i), "answer": str(9 - i)} for i in range(5)]
    options = {"check": lambda row, text: "1" in text, "phi_min": -50.0, "max_new_tokens": 10, "seed": 3}
    whole = realign(rows, decoder, **options)

    def rounded(found):
        return [{k: round(v, 9) if isinstance(v, float) else v for k, v in row.items()} for row in found]

    assert rounded(realign(rows, decoder, batch=2, **options)) == rounded(whole)
    assert rounded(realign(rows[2:], decoder, first=2, **options)) == rounded(whole[2:])
    assert any(f["realigned"] for f in whole)


def test_the_default_filter_is_a_quantile_of_the_models_own_samples():
    """About one in twenty of its own answers lies below."""
    decoder = HintedDecoder(
        tiny(len(DIGITS), spread=4.0), DIGITS, split=None, hinted_prompt=lambda p, h: p, temperature=1.0
    )
    options = {"max_new_tokens": 12, "samples": 400}
    low = own_phi_quantile(decoder, ["1 2", "3"], **options, seed=0)
    assert own_phi_quantile(decoder, ["1 2", "3"], **options, seed=0) == low
    assert own_phi_quantile(decoder, ["1 2", "3"], quantile=0.5, **options) > low
    again = own_phi_quantile(decoder, ["1 2", "3"], **options, seed=1)
    assert again == pytest.approx(low, abs=0.15)


def test_bound_rows_are_sampled():
    sampler = Realignment(ROWS, Scripted(lambda p, b: answer(rf"\boxed{{{p[0]}}}")), phi_min=-1.0)
    assert len(sampler.sample(6, seed=0)) == 6
    assert sampler.sample(0, seed=0) == []
    with pytest.raises(ValueError, match="n=-2"):
        sampler.sample(-2, seed=0)


def test_bad_arguments_are_named():
    decoder = Scripted(lambda p, b: answer("1"))
    with pytest.raises(ValueError, match="row 0 has no boxed answer to compare"):
        realign([{"prompt": "1", "answer": "2"}], decoder, phi_min=0.0)
    with pytest.raises(ValueError, match="there are no rows"):
        realign([], decoder)
    with pytest.raises(ValueError, match="there are no rows"):
        Realignment([], decoder)
    with pytest.raises(ValueError, match="retries=-1"):
        realign(ROWS, decoder, retries=-1)
    with pytest.raises(ValueError, match="row 0 has no prompt"):
        realign([{"answer": "2"}], decoder)


def test_rejection_sampling_keeps_right_answers_of_the_model_itself():
    model = tiny(len(DIGITS), spread=5.0)
    rows = [{"prompt": str(i)} for i in range(6)]
    options = {"samples": 12, "max_new_tokens": 4, "generator": torch.Generator().manual_seed(0)}
    kept = rejection_sample(model, DIGITS, rows, lambda row, text: len(text.split()) == 2, **options)
    assert kept
    assert all(len(row["response"].split()) == 2 for row in kept)
    assert len({row["prompt"] for row in kept}) == len(kept)
    ids = torch.tensor([[*DIGITS.encode(kept[0]["prompt"]), *DIGITS.encode(kept[0]["response"])]])
    assert torch.isfinite(cll(model, ids).phi).all()
    several = rejection_sample(
        model, DIGITS, rows, lambda row, text: True, per_prompt=3, **{**options, "samples": 12}
    )
    assert len(several) > len(kept)
    with pytest.raises(ValueError, match="samples=0"):
        rejection_sample(model, DIGITS, rows, lambda r, t: True, samples=0, generator=options["generator"])
