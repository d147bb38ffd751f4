"""Training with the losses: exact batches, resumption, packing, advice, warnings."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from icml_idft import FineTuning, IDFTLoss, PreconditionedAdamW, TrainOptions, advise, finetune
from icml_idft.skills import demonstrations
from icml_lm import merge
from small_models import tiny

ROWS = [row._asdict() for row in demonstrations("ASC", 12, seed=0)]
FAST = {"lr": 1e-3, "epochs": 2, "batch": 4, "advice": False}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_training_lowers_the_nll_and_the_log_has_every_figure():
    model, log = finetune(tiny(), ROWS, **{**FAST, "epochs": 8, "lr": 5e-3}, loss="sft")
    assert log.steps == len(log.loss) == 24
    assert set(log.figures) == {
        "nll",
        "phi",
        "suppressed",
        "mean_weight",
        "weight_sum",
        "tokens",
        "impossible",
        "share",
    }
    assert log.figures["nll"][-1] < log.figures["nll"][0] - 0.5
    assert log.loss == pytest.approx(log.figures["nll"], rel=1e-5)
    assert log.figures["mean_weight"] == [1.0] * 24
    assert not model.training


def test_one_step_is_the_optimizers_on_the_definitions_gradient():
    model, twin = tiny(), tiny()
    finetune(
        model, ROWS[:4], loss="idft", lr=0.1, epochs=1, batch=4, optimizer="sgd", clip=None, advice=False
    )
    ids = [row["input_ids"] for row in ROWS[:4]]
    loss = IDFTLoss()
    total = sum(
        loss(twin(torch.tensor([i])).logits, torch.tensor([row["labels"]]), num_items=1)
        for i, row in zip(ids, ROWS, strict=False)
    )
    items = sum(sum(x != -100 for x in row["labels"][1:]) for row in ROWS[:4])
    gradients = torch.autograd.grad(total / items, twin.parameters())
    expected = torch.cat(
        [(p - 0.1 * g).detach().flatten() for p, g in zip(twin.parameters(), gradients, strict=True)]
    )
    torch.testing.assert_close(weights(model), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro", [1, 3])
def test_micro_batches_train_as_the_batch(micro):
    model, log = finetune(tiny(), ROWS, **FAST)
    parts, of_parts = finetune(tiny(), ROWS, **FAST, micro_batch=micro)
    torch.testing.assert_close(weights(parts), weights(model), rtol=1e-3, atol=1e-5)
    assert of_parts.loss == pytest.approx(log.loss, rel=1e-4)
    assert of_parts.figures["weight_sum"] == pytest.approx(log.figures["weight_sum"], rel=1e-4)


def test_rows_that_lost_their_answer_change_no_gradient():
    cut = {"input_ids": [5, 6, 7, 8], "labels": [-100] * 4}
    options = {"lr": 0.1, "epochs": 1, "optimizer": "sgd", "advice": False}
    plain, _ = finetune(tiny(), ROWS[:4], batch=4, **options)
    for micro in (None, 1):
        model, log = finetune(tiny(), [*ROWS[:4], cut, cut], batch=6, micro_batch=micro, **options)
        torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-6)
        assert log.empty == 2


@pytest.mark.parametrize("precondition", [None, "sft"])
def test_a_stopped_training_resumes_bit_for_bit(tmp_path, precondition):
    options = {**FAST, "precondition": precondition, "loss": "idft"}
    sets = {"held out": ROWS[:3]}
    whole, log = finetune(tiny(), ROWS, **options, eval_sets=sets)

    def stop(step, figures, model):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(tiny(), ROWS, **options, eval_sets=sets, checkpoint=tmp_path, callbacks=[stop])
    resumed, again = finetune(tiny(seed=9), ROWS, **options, eval_sets=sets, checkpoint=tmp_path)
    assert torch.equal(weights(resumed), weights(whole))
    assert again.loss == log.loss
    assert again.figures == log.figures
    assert [row["step"] for row in again.evaluations] == [0.0, 3.0, 6.0]
    assert again.evaluations[1:] == log.evaluations[1:]


def test_packed_rows_have_the_loss_of_rows_apart():
    packed, log = finetune(tiny(), ROWS, **FAST, packing=True)
    plain, _ = finetune(tiny(), ROWS, **FAST)
    assert log.packed
    torch.testing.assert_close(weights(packed), weights(plain), rtol=1e-3, atol=1e-5)


def test_packing_falls_back_to_padding_and_says_so():
    """A model that ignores the block-diagonal mask lets rows see each other."""
    model = tiny()
    original = model.forward

    def blind(input_ids, attention_mask=None, position_ids=None, **inputs):
        return original(input_ids, **inputs)

    model.forward = blind
    with pytest.warns(UserWarning, match="packing is off, rows are padded"):
        _, log = finetune(model, ROWS, **FAST, packing=True)
    assert not log.packed
    assert any("packing is off" in text for text in log.warnings)


def test_evaluations_stand_before_and_after_each_epoch():
    calls = []

    def count(model):
        calls.append(model.training)
        return {"ones": 1.0}

    _, log = finetune(
        tiny(), ROWS, **FAST, eval_sets={"held": ROWS[:4], "own": count, "plain": lambda m: 0.5}
    )
    assert [row["step"] for row in log.evaluations] == [0.0, 3.0, 6.0]
    assert set(log.evaluations[0]) == {"step", "held.nll", "held.phi", "own.ones", "plain"}
    assert log.evaluations[-1]["held.nll"] < log.evaluations[0]["held.nll"]
    assert calls == [False] * 3


def test_a_task_that_is_not_being_learnt_is_warned_of():
    """The base is sure of another answer, so that the weights start near 0 and stay there."""
    sure = [{"input_ids": [5, 6, 7, 8, 9, 10], "labels": [-100, 6, 7, 8, 9, 10]}] * 8
    model, _ = finetune(tiny(), sure, lr=1e-2, epochs=40, batch=8, loss="sft", advice=False)
    other = [{"input_ids": [5, 11, 12, 13, 14, 15], "labels": [-100, 11, 12, 13, 14, 15]}] * 8
    with pytest.warns(UserWarning, match="the model is not learning this data"):
        _, log = finetune(model, other, lr=1e-5, epochs=80, batch=8, loss="idft", advice=False)
    assert any("use loss='sft'" in text for text in log.warnings)


def test_advice_tells_own_words_from_foreign_ones(capsys):
    own = [{"input_ids": [5, 6, 7, 8, 9, 10], "labels": [-100, 6, 7, 8, 9, 10]}] * 8
    model, _ = finetune(tiny(), own, lr=1e-2, epochs=40, batch=8, loss="sft", advice=False)
    from icml_idft import encode_rows

    foreign = encode_rows([{"input_ids": [5, 6, 21, 7, 8, 9, 10], "labels": [-100, 6, 21, 7, 8, 9, 10]}] * 4)
    unknown = encode_rows([{"input_ids": [5, 30, 21, 33], "labels": [-100, 30, 21, 33]}] * 4)
    assert advise(model, encode_rows(own).rows).recommend == "sft"
    assert advise(model, unknown.rows).recommend == "realign"
    assert advise(model, unknown.rows, solved=0.0).recommend == "sft"
    assert advise(model, foreign.rows, solved=1.0).recommend == "idft"
    assert advise(model, unknown.rows).low_weight > 0.9
    capsys.readouterr()
    _, log = finetune(model, own, lr=1e-4, epochs=1, batch=8)
    assert log.advice.recommend == "sft"
    assert "mean phi" in capsys.readouterr().out


def test_preconditioned_adam_is_adamw_where_nothing_else_was_measured():
    a, b = tiny().double(), tiny().double()  # in float32 the rounding of small gradients decides their sign
    ids = torch.randint(3, 40, (2, 5), generator=torch.Generator().manual_seed(0))
    ours = PreconditionedAdamW(a.parameters(), lr=1e-2, weight_decay=0.1)
    theirs = torch.optim.AdamW(b.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(4):
        for model, optimizer in ((a, ours), (b, theirs)):
            optimizer.zero_grad()
            loss = model(ids, labels=ids).loss
            if model is a:
                ours.measure(loss)
            loss.backward()
            optimizer.step()
    torch.testing.assert_close(weights(a), weights(b), rtol=1e-9, atol=1e-11)


def test_a_weight_that_all_tokens_share_matters_only_with_preconditioning():
    """Adam undoes a factor of the gradient; the second moment of the unweighted loss keeps it."""
    moved = {}
    for precondition in (None, "sft"):
        model = tiny()
        before = weights(model)
        options = {**FAST, "epochs": 1, "clip": None, "precondition": precondition}
        finetune(model, ROWS, loss=IDFTLoss("indomain", weight_range=(1e-2, 1e-2)), **options)
        moved[precondition] = float((weights(model) - before).norm())
    assert moved["sft"] < 0.05 * moved[None]


def test_adapters_leave_the_base_as_it_was_and_merge():
    pytest.importorskip("peft")
    model = tiny()
    before = weights(model)
    ids = torch.tensor([ROWS[0]["input_ids"]])
    tuned, log = finetune(model, ROWS, **{**FAST, "lr": 1e-2}, lora={"r": 2, "targets": ["q_proj", "v_proj"]})
    adapted = tuned(input_ids=ids).logits
    assert log.loss[-1] != log.loss[0]
    merged = merge(tuned)
    torch.testing.assert_close(merged(ids).logits, adapted, rtol=1e-4, atol=1e-5)
    assert not torch.equal(weights(merged), before)


def test_tied_models_with_adapters_say_the_same_after_save_merge_and_reload(tmp_path):
    """In a fresh process, with and without added tokens."""
    pytest.importorskip("peft")
    ids = torch.tensor([[5, 6, 7]])
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": 10**6}
    expected = []
    for added in (0, 3):
        model = tiny(40, tied=True, spread=2.0).to_llama()
        if added:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model.resize_token_embeddings(40 + added)
        with pytest.raises(ValueError, match="tied embeddings"):
            finetune(copy.deepcopy(model), ROWS, **FAST, lora={"r": 2, "targets": ["lm_head"]})
        both = {"r": 2, "targets": ["q_proj", "embed_tokens", "lm_head"]}
        tuned, _ = finetune(model, ROWS, **{**FAST, "lr": 1e-2}, lora=both)
        expected.append(tuned.generate(input_ids=ids, **options)[0].tolist())
        merge(tuned).save_pretrained(tmp_path / str(added))
    code = (
        "import json, torch, transformers as t\n"
        "for added in (0, 3):\n"
        f"    m = t.LlamaForCausalLM.from_pretrained(f'{tmp_path}/{{added}}').eval()\n"
        f"    print(json.dumps(m.generate(torch.tensor([[5, 6, 7]]), **{options!r})[0].tolist()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()[-2:]] == expected


def test_bad_settings_are_named():
    for options, text in (
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": 1e-3, "epochs": 0}, "epochs=0"),
        ({"lr": 1e-3, "micro_batch": 0}, "micro_batch=0"),
        ({"lr": 1e-3, "precondition": "dft"}, "precondition='dft'"),
        ({"lr": 1e-3, "precondition": "sft", "optimizer": "sgd"}, "does not go with optimizer='sgd'"),
    ):
        with pytest.raises(ValueError, match=text):
            TrainOptions(**options)
    with pytest.raises(ValueError, match="lr=-1"):
        FineTuning(lr=-1)
    with pytest.raises(ValueError, match="row 0 holds the id 99, but the model has 40 tokens"):
        finetune(tiny(40), [{"input_ids": [1, 99]}], lr=1e-3)
    with pytest.raises(ValueError, match="shift=True"):
        finetune(tiny(), ROWS, lr=1e-3, loss=IDFTLoss(shift=False))
