"""The loss in transformers' Trainer and TRL's SFTTrainer: real trainings of a tiny model, offline."""

import pytest
import torch
from icml_idft import IDFTLoss
from icml_idft.trainer import TrainerLoss
from small_models import tiny

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

VOCAB = 40


def rows(n=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        ids = torch.randint(3, VOCAB, (10,), generator=generator)
        found.append({"input_ids": ids, "labels": torch.cat((torch.full((4,), -100), ids[4:]))})
    return found


def llama(seed=0):
    return tiny(VOCAB, d=16, layers=1, seed=seed, spread=3.0).to_llama()


def arguments(folder, **more):
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
        "seed": 1,
    }
    return transformers.TrainingArguments(**{**options, **more})


def trained(folder, loss, model=None, *, fused=False, **more):
    model = llama() if model is None else model
    compute = loss.as_hf(model if fused else None)
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, **more),
        train_dataset=rows(),
        eval_dataset=rows(4, seed=9),
        compute_loss_func=compute,
        callbacks=[loss.callback()],
    )
    trainer.train()
    return trainer, compute


def test_a_trainer_learns_and_logs_the_statistics(tmp_path):
    trainer, _ = trained(tmp_path, IDFTLoss(), max_steps=30)
    logs = [line for line in trainer.state.log_history if "loss" in line]
    assert len(logs) == 30
    assert all({"nll", "mean_weight", "weight_sum", "phi", "suppressed"} <= set(line) for line in logs)
    assert logs[-1]["nll"] < logs[0]["nll"]
    assert logs[-1]["mean_weight"] > logs[0]["mean_weight"]


def test_accumulated_micro_batches_train_as_the_batch(tmp_path):
    """The loss is normalised by the tokens of all micro-batches."""
    states = [
        trained(
            tmp_path, IDFTLoss(), per_device_train_batch_size=size, gradient_accumulation_steps=8 // size
        )[0].model.state_dict()
        for size in (8, 2)
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-5)


def test_hidden_states_train_as_logits_do(tmp_path):
    plain, _ = trained(tmp_path, IDFTLoss())
    model = llama()
    fused, compute = trained(tmp_path, IDFTLoss(), model, fused=True)
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(fused.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    ids = torch.tensor([[3, 4, 5]])
    assert model(input_ids=ids).logits.shape[1] == 1
    compute.remove()
    assert model(input_ids=ids).logits.shape[1] == 3


@pytest.mark.parametrize("fused", [False, True])
def test_evaluation_gives_the_training_loss_of_the_same_batch(tmp_path, fused):
    """Without a number of items the loss counts the supervised tokens itself."""
    trainer, compute = trained(tmp_path, IDFTLoss(), fused=fused)
    found = trainer.evaluate()["eval_loss"]
    compute.remove()
    batch = transformers.default_data_collator(rows(4, seed=9))
    trainer.model.eval()
    logits = trainer.model(input_ids=batch["input_ids"]).logits
    expected = IDFTLoss()(logits, batch["labels"])
    assert found == pytest.approx(float(expected), rel=1e-4)
    alone = compute(type("Output", (), {"logits": logits})(), batch["labels"], num_items_in_batch=None)
    torch.testing.assert_close(alone, expected)


def test_a_warm_up_needs_the_callback_and_follows_the_trainers_steps(tmp_path):
    loss = IDFTLoss(warmup=0.5)
    shares = []
    original = loss.share

    def noted(step=None, total=None):
        shares.append(original(step, total))
        return shares[-1]

    loss.share = noted
    trained(tmp_path, loss)
    assert shares == [0.0] * 3 + [1.0] * 3
    with pytest.raises(ValueError, match=r"callbacks=\[loss.callback\(\)\]"):
        IDFTLoss(warmup=0.5).as_hf()(
            type("Output", (), {"logits": torch.zeros(1, 2, 3)})(), torch.tensor([[0, 1]])
        )


def sft_trainer(folder, loss, **config):
    trl = pytest.importorskip("trl")
    import datasets

    settings = trl.SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        max_steps=4,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        lr_scheduler_type="constant",
        bf16=False,
        gradient_checkpointing=False,
        eos_token=None,
        seed=1,
        **config,
    )
    listed = [{k: v.tolist() for k, v in row.items()} for row in rows()]
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=word_level(), eos_token="2", pad_token="0")
    return trl.SFTTrainer(
        model=llama(),
        args=settings,
        train_dataset=datasets.Dataset.from_list(listed),
        processing_class=made,
        compute_loss_func=None if loss is None else loss.as_hf(),
        callbacks=[] if loss is None else [loss.callback()],
    )


def word_level():
    import tokenizers

    vocabulary = {str(i): i for i in range(VOCAB)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="1"))


@pytest.mark.filterwarnings("ignore")
def test_sft_trainer_trains_with_it(tmp_path):
    trainer = sft_trainer(tmp_path, IDFTLoss())
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    assert len(logs) == 4
    assert all("mean_weight" in line for line in logs)


@pytest.mark.filterwarnings("ignore")
def test_dft_is_trls(tmp_path):
    """gamma 1 and trl's loss_type="dft" give the same losses and the same weights."""
    ours = sft_trainer(tmp_path, IDFTLoss(gamma=(1.0, 1.0)))
    theirs = sft_trainer(tmp_path, None, loss_type="dft")
    for trainer in (ours, theirs):
        trainer.train()
    of_ours, of_theirs = (
        [line["loss"] for line in t.state.log_history if "loss" in line] for t in (ours, theirs)
    )
    assert of_ours == pytest.approx(of_theirs, abs=1e-6)
    for name, value in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_outputs_without_logits_say_what_to_do():
    compute = IDFTLoss().as_hf()
    assert isinstance(compute, TrainerLoss)
    with pytest.raises(ValueError, match="pass hidden="):
        compute(type("Output", (), {"logits": None})(), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="the batch has no labels"):
        compute(type("Output", (), {"logits": None})(), None)


def test_a_head_that_is_adapted_is_refused_for_hidden_states():
    peft = pytest.importorskip("peft")
    model = llama()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(TypeError, match="is no plain linear layer"):
        IDFTLoss().as_hf(adapted)
