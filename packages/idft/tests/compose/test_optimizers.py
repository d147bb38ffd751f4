"""Fine-tuning with another package's optimizer, by its name."""

import pytest
import torch
from icml_idft import finetune
from icml_idft.skills import demonstrations
from icml_lm import TinyConfig, TinyLM
from icml_lm.tasks.digit_ops import tokenizer

pytest.importorskip("icml_sso")


@pytest.mark.filterwarnings("ignore:.*embedding")
def test_the_spectral_sphere_optimizer_fine_tunes_by_name(tmp_path):
    """The loss falls, and a stopped training resumes as if it had not been."""
    rows = [row._asdict() for row in demonstrations("ASC", 16, seed=0)]
    config = TinyConfig(vocab=len(tokenizer()), d=32, layers=2, heads=2)
    options = {"lr": 2e-2, "epochs": 8, "batch": 8, "optimizer": "sso.sso", "loss": "sft", "advice": False}
    whole, log = finetune(TinyLM(config, seed=0), rows, **options)
    assert log.figures["nll"][-1] < 0.8 * log.figures["nll"][0]

    def stop(step, figures, model):
        if step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(TinyLM(config, seed=0), rows, checkpoint=tmp_path, callbacks=[stop], **options)
    resumed, again = finetune(TinyLM(config, seed=3), rows, checkpoint=tmp_path, **options)
    assert again.loss == log.loss
    for a, b in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)
