"""Gates in Hugging Face's Trainer and in Lightning's, beside a loop by hand that learns them from the same
loss."""

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headgates.gates import HardConcrete, attach, load_pruned, remove
from headgates.gates.hard_concrete import sample_gate
from tests.worlds.ranks import Command

pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
transformers = pytest.importorskip("transformers", reason="the Trainer is one of the extra hf")
pl = pytest.importorskip("pytorch_lightning", reason="Lightning is one of the extra train")

import safetensors.torch  # noqa: E402

import headgates as hg  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = {"heads": 3, "warmup": 4, "settle": 0.0}
STEPS, CLIP, LR = 10, 0.05, 0.1
pytestmark = [
    pytest.mark.filterwarnings("ignore:training ended after"),
    pytest.mark.filterwarnings("ignore:.*a head stays at"),
    pytest.mark.filterwarnings("ignore:.*of the gates that close"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
]


def make_model(dropout=0.0):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=23,
        hidden_size=20,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=13,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.3,
    )
    return transformers.BertForSequenceClassification(config)


def make_batch(sentences=8):
    words = torch.randint(3, 23, (sentences, 7), generator=torch.Generator().manual_seed(1))
    return {"input_ids": words, "labels": (words.sum(1) % 2).long()}


def rows_of(batch):
    return [{name: column[row] for name, column in batch.items()} for row in range(len(batch["labels"]))]


def log_alphas(bank):
    return torch.cat([gate.log_alpha.detach() for _, gate in bank.items()])


@pytest.fixture
def same_noise(monkeypatch):
    fix_noise(monkeypatch.setattr)


def fix_noise(setattr=setattr):
    def sample(self):
        u = torch.linspace(0.02, 0.4, self.heads)
        return sample_gate(self.log_alpha, u, beta=self.beta, gamma=self.gamma, zeta=self.zeta)

    setattr(HardConcrete, "sample", sample)


@pytest.fixture(scope="module")
def by_hand():
    """Gates, and logits of the pruned model, from a loop that adds the price to its loss."""
    with pytest.MonkeyPatch.context() as patched:
        fix_noise(patched.setattr)
        model, batch = make_model().train(), make_batch()
        weights = list(model.parameters())
        bank = attach(model, heads=3, warmup=4)
        start = log_alphas(bank)
        theirs = torch.optim.SGD(weights, lr=LR)
        own = torch.optim.AdamW(bank.parameters(), 0.05, (0.9, 0.98), 1e-9, 0.0)
        for step in range(STEPS):
            model.zero_grad()
            (model(**batch).loss + bank.loss(step)).backward()
            torch.nn.utils.clip_grad_norm_(weights, CLIP)
            theirs.step(), own.step()
    found = log_alphas(bank)
    assert ((found - start).abs() > 0.1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        remove(model, bank)
    return found, logits_of(model)


def logits_of(model):
    with torch.no_grad():
        return model.eval()(input_ids=make_batch()["input_ids"]).logits


def check_as_by_hand(model, gates, by_hand, tolerance=1e-4):
    found, logits = by_hand
    torch.testing.assert_close(log_alphas(gates.bank), found, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(logits_of(model), logits, rtol=tolerance, atol=tolerance)
    assert gates.removed.heads.count() == 7


# ---------------------------------------------------------------- transformers


def mean_loss(outputs, labels, num_items_in_batch=None):
    """Over all parts of a step's batch: transformers adds up the means of a classifier's parts."""
    total = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
    return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)


def train_hf(
    folder,
    gates,
    *more,
    model=None,
    resume=None,
    rows=None,
    compute_metrics=None,
    tokenizer=None,
    **arguments,
):
    model = model or make_model()
    fixed = {"optim": "sgd", "learning_rate": LR, "max_grad_norm": CLIP, "lr_scheduler_type": "constant"}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    batches = {"per_device_train_batch_size": 8, "max_steps": STEPS}
    rows = rows or rows_of(make_batch())
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(str(folder), **fixed | quiet | batches | arguments),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=transformers.default_data_collator,
        compute_loss_func=mean_loss,
        callbacks=[gates, *more],
    )
    trainer.train(resume_from_checkpoint=resume)
    return model


@pytest.mark.parametrize(
    "arguments",
    [
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"activation_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "eager"},
    ],
    ids=["accumulation", "checkpointing", "compile"],
)
def test_the_trainer_learns_the_gates_of_a_loop_by_hand(tmp_path, same_noise, by_hand, arguments):
    gates = hg.hf.HeadGates(**OPTIONS)
    check_as_by_hand(train_hf(tmp_path, gates, **arguments), gates, by_hand)


def test_in_bf16_gates_learn_in_float32(tmp_path, same_noise, by_hand):
    gates = hg.hf.HeadGates(**OPTIONS)
    train_hf(tmp_path, gates, bf16=True)
    torch.testing.assert_close(log_alphas(gates.bank), by_hand[0], rtol=0.02, atol=0.02)


class PowerCut(Exception):
    pass


class Cut(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 7:
            raise PowerCut


@pytest.mark.parametrize("restore", [False, True])
def test_a_killed_training_goes_on_as_if_undisturbed(tmp_path, restore):
    """With dropout and noise, in batches of three epochs; the cut lies two steps after the checkpoint."""
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_strategy": "steps"}
    arguments |= {"save_steps": 5, "optim": "adamw_torch", "restore_callback_states_from_checkpoint": restore}
    kept = {"save_only_model": False, "rows": rows_of(make_batch(16)), **arguments}
    options = OPTIONS | {"settle": 0.2}
    whole = hg.hf.HeadGates(**options)
    first = train_hf(tmp_path / "whole", whole, model=make_model(0.2), **kept)
    with pytest.raises(PowerCut):
        train_hf(tmp_path / "cut", hg.hf.HeadGates(**options), Cut(), model=make_model(0.2), **kept)
    resumed = hg.hf.HeadGates(**options)
    place = str(tmp_path / "cut/checkpoint-5")
    second = train_hf(tmp_path / "cut", resumed, model=make_model(0.2), resume=place, **kept)
    assert torch.equal(logits_of(first), logits_of(second))
    if not restore:  # else Trainer makes a callback of its own
        assert torch.equal(log_alphas(whole.bank), log_alphas(resumed.bank))


def test_a_checkpoint_of_other_gates_is_refused_in_words_of_our_own(tmp_path):
    kept = {"save_only_model": False, "save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    train_hf(tmp_path, hg.hf.HeadGates(heads=2), **kept)
    place = str(tmp_path / "checkpoint-2")
    with pytest.raises(
        ValueError, match=r"gates of HeadGates\(heads=2\), this is HeadGates\(neurons=16\); resume"
    ):
        train_hf(tmp_path, hg.hf.HeadGates(neurons=16), resume=place, **(kept | {"max_steps": 4}))


@pytest.mark.parametrize("other", [{"lam": 0.01}, {"heads": {"enc-self": 2}}])
def test_a_checkpoint_of_another_budget_is_refused(tmp_path, other):
    kept = {"save_only_model": False, "save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    train_hf(tmp_path, hg.hf.HeadGates(heads=2), **kept)
    with pytest.raises(ValueError, match=r"gates of HeadGates\(heads=2\), this is HeadGates\(.*\); resume"):
        train_hf(
            tmp_path,
            hg.hf.HeadGates(**other),
            resume=str(tmp_path / "checkpoint-2"),
            **(kept | {"max_steps": 4}),
        )


def test_numbers_of_numpy_and_a_word_for_kinds_go_into_checkpoints_and_back():
    given = dict(heads=np.int64(2), neurons=np.int64(16), lr=np.float32(0.5), warmup=np.int64(3))
    kept = json.loads(json.dumps(hg.hf.HeadGates(**given, kinds="all").state()))["args"]
    again = hg.hf.HeadGates(**kept)
    again.put_on(make_model(), seed=1)
    assert (again.kinds, again.heads, again.lr, len(again.bank.sites)) == ("all", 2, 0.5, 4)
    assert attach(make_model(), heads=np.int64(2)).budget.targets == {"": 2}


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_what_accelerate_launch_starts_is_refused_too(kind, monkeypatch):
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState

    monkeypatch.setitem(AcceleratorState._shared_state, "distributed_type", DistributedType[kind])
    arguments = SimpleNamespace(deepspeed=None, fsdp=[], n_gpu=1, seed=1)
    with pytest.raises(ValueError, match="not with DeepSpeed, FSDP or DataParallel"):
        hg.hf.HeadGates(heads=2).on_train_begin(arguments, None, None, model=make_model())


def best_of(scores):
    """Arguments of a training that is scored every two steps, and ends with its best checkpoint."""
    return dict(
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        compute_metrics=lambda _: {"score": next(scores)},
    )


def test_the_best_checkpoint_s_gates_decide_and_an_early_stop_is_said(tmp_path):
    gates, scores = hg.hf.HeadGates(**OPTIONS | {"warmup": 30}), iter([5.0, 4.0, 3.0])
    with pytest.warns(UserWarning, match=r"training ended after 4 steps, before the gates came to their"):
        train_hf(tmp_path, gates, transformers.EarlyStoppingCallback(1), **best_of(scores))
    best = safetensors.torch.load_file(tmp_path / "checkpoint-2/model.safetensors")
    for site, gate in gates.bank.items():
        name = f"head_gates.gates.{site.name.replace('.', '/')}.log_alpha"
        assert torch.equal(gate.log_alpha, best[name])
    assert gates.removed.heads.count() == 7
    # a checkpoint from before the removal is a whole model, whose gates transformers leaves out
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(again.classifier.weight, best["classifier.weight"])


def test_the_best_checkpoint_s_gates_are_read_where_its_weights_are_an_adapter_s(tmp_path):
    gates, other = hg.hf.HeadGates(**OPTIONS), hg.hf.HeadGates(**OPTIONS)
    gates.put_on(make_model(), seed=1)
    other.put_on(make_model(), seed=1)
    with torch.no_grad():
        for _, gate in other.bank.items():
            gate.log_alpha.normal_()
    (tmp_path / "best").mkdir()
    states = json.dumps({"stateful_callbacks": {"HeadGates": other.state()}})
    (tmp_path / "best/trainer_state.json").write_text(states)
    gates.take_gates_of(tmp_path / "best")
    assert torch.equal(log_alphas(gates.bank), log_alphas(other.bank))
    gates.take_gates_of(tmp_path)  # which has none


def test_gates_that_a_checkpoint_has_not_begin_with_the_steps_that_are_left(tmp_path):
    steps = {"save_strategy": "steps", "save_steps": 5}
    train_hf(tmp_path, transformers.TrainerCallback(), max_steps=5, **steps)
    gates = hg.hf.HeadGates(heads=3, settle=0.5)
    train_hf(tmp_path, gates, max_steps=15, resume=str(tmp_path / "checkpoint-5"), **steps)
    assert (gates.gates.number, gates.settle_at) == (10, 5)
    assert all(gate.binarised for _, gate in gates.bank.items())


def test_a_training_that_ends_before_its_gates_settle_is_said(tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 6

    with pytest.warns(UserWarning, match=r"before the gates settled at exactly 0 or 1 \(step 8\)"):
        train_hf(tmp_path, hg.hf.HeadGates(heads=3, warmup=2, settle=0.2), Stop())


def test_a_best_checkpoint_from_before_the_gates_settled_is_said(tmp_path):
    scores = iter([5.0, *[1.0] * 9])
    with pytest.warns(UserWarning, match="the best checkpoint is from before the gates settled at exactly 0"):
        train_hf(tmp_path, hg.hf.HeadGates(heads=3, warmup=4, settle=0.4), **best_of(scores))


def test_the_refit_makes_up_for_what_goes_and_the_saved_folder_gives_the_same(tmp_path, capsys):
    whole, batch = logits_of(make_model()), {"input_ids": make_batch(40)["input_ids"]}
    loss = {}
    for refit in (None, [batch]):
        gates = hg.hf.HeadGates(**OPTIONS, refit=refit, save=tmp_path / f"saved-{refit is None}")
        model = train_hf(tmp_path, gates, learning_rate=0.0, tokenizer=transformers.ByT5Tokenizer())
        loss[refit is None] = float((logits_of(model) - whole).square().mean())
    assert loss[False] < loss[True]
    assert torch.equal(logits_of(load_pruned(tmp_path / "saved-False")), logits_of(model))
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved-False")
    assert saved("ba").input_ids == transformers.ByT5Tokenizer()("ba").input_ids
    assert "HeadGates: 3 of 10 heads (enc-self " in capsys.readouterr().out


# ---------------------------------------------------------------- Lightning


class Module(pl.LightningModule):
    def __init__(self, dropout=0.0, optimizer=torch.optim.SGD):
        super().__init__()
        self.bert, self.made = make_model(dropout), optimizer
        self.register_buffer("seen", torch.zeros(()))  # after the model, as a metric's

    def training_step(self, batch, index):
        return self.bert(**batch).loss

    def configure_optimizers(self):
        return self.made(self.parameters(), lr=LR)


def train_pl(gates, *more, module=None, path=None, batches=1, sentences=8, **options):
    module, rows = module or Module(), rows_of(make_batch(sentences))
    loader = torch.utils.data.DataLoader(rows, batch_size=sentences // batches)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(
        **quiet | {"enable_checkpointing": False, "accelerator": "cpu", "max_steps": STEPS} | options,
        callbacks=[gates, *more],
        accumulate_grad_batches=batches,
        gradient_clip_val=CLIP if module.automatic_optimization else None,
    )
    trainer.fit(module.train(), loader, ckpt_path=path, weights_only=False)
    return module


def test_lightning_learns_the_gates_of_a_loop_by_hand(same_noise, by_hand):
    gates = hg.lightning.HeadGates(**OPTIONS)
    check_as_by_hand(train_pl(gates, batches=2).bert, gates, by_hand)


def test_in_fp16_the_scale_of_the_loss_is_taken_off_the_gates(same_noise, by_hand):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=100)  # too large at first
    plugin = pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)
    gates = hg.lightning.HeadGates(**OPTIONS)
    train_pl(gates, plugins=[plugin], max_steps=STEPS + 3)
    assert gates.gates.number == STEPS  # the scaler left three out
    torch.testing.assert_close(log_alphas(gates.bank), by_hand[0], rtol=0.02, atol=0.02)


class TwoOptimizers(Module):
    automatic_optimization = False

    def configure_optimizers(self):
        own = list(self.parameters())
        return [torch.optim.SGD(each, LR) for each in (own[:9], own[9:])]

    def training_step(self, batch, index):
        self.manual_backward(self.bert(**batch).loss)
        for each in self.optimizers():
            each.step()
            each.zero_grad()


def test_gates_make_a_step_a_batch_whatever_number_of_optimizers_steps():
    gates = hg.lightning.HeadGates(**OPTIONS)
    train_pl(gates, module=TwoOptimizers(), max_steps=2 * STEPS)  # Lightning counts both
    assert gates.gates.number == STEPS


class Toggled(TwoOptimizers):
    """As in a GAN: what does not train is frozen meanwhile, the gates too."""

    def configure_optimizers(self):
        return [torch.optim.SGD(each, LR) for each in ([self.other], self.bert.parameters())]

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, index):
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        self.manual_backward(self.other.square())
        first.step()
        self.untoggle_optimizer(first)
        self.manual_backward(self.bert(**batch).loss)
        second.step()
        second.zero_grad()


def test_the_price_is_paid_while_another_optimizer_has_frozen_the_gates():
    gates = hg.lightning.HeadGates(**OPTIONS)
    train_pl(gates, module=Toggled(), max_steps=2 * STEPS)
    assert (log_alphas(gates.bank) < HardConcrete(5).log_alpha.mean()).all()


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(rows_of(make_batch(80)))


@pytest.mark.parametrize("epochs", [1, -1])
def test_a_training_of_unknown_length_is_refused_unless_nothing_depends_on_it(epochs):
    loader = torch.utils.data.DataLoader(Endless(), batch_size=8)

    def trained(gates, **options):
        module = Module()
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        pl.Trainer(**quiet, enable_checkpointing=False, accelerator="cpu", callbacks=[gates], **options).fit(
            module.train(), loader
        )
        return module

    gates = hg.lightning.HeadGates(heads=3)
    with pytest.raises(ValueError, match=r"does not know how many steps.*max_steps"):
        trained(gates, max_epochs=epochs)
    assert gates.model is None
    trained(gates, max_epochs=1, max_steps=8)
    assert gates.removed.heads.count() == 7
    if epochs == 1:
        gates = hg.lightning.HeadGates(heads=3, warmup=4, settle=0)
        trained(gates, max_epochs=epochs)
        assert gates.gates.number == STEPS


class Late(Module):
    """Which makes its model where Lightning wants a large one made."""

    def __init__(self):
        pl.LightningModule.__init__(self)
        self.made = torch.optim.SGD

    def configure_model(self):
        self.bert = make_model()


def test_a_model_that_is_made_too_late_is_one_clear_line():
    with pytest.raises(ValueError, match="makes in configure_model or setup is not there yet"):
        train_pl(hg.lightning.HeadGates(**OPTIONS), module=Late())


def test_a_trainer_of_the_other_package_is_named():
    class Trainer:
        pass

    Trainer.__module__ = "lightning.pytorch.trainer.trainer"
    with pytest.raises(ValueError, match="a Trainer of the package lightning, and HeadGates a callback of"):
        hg.lightning.HeadGates(heads=3).setup(Trainer(), Module(), "fit")


def test_gates_that_have_settled_stay_as_they_were_decided():
    """The momentum of Adam would move them on, for no gradient at all."""
    gates, decided = hg.hf.HeadGates(**OPTIONS | {"settle": 0.5, "lr": 0.5}), []
    gates.put_on(model := make_model(), seed=0)
    gates.begin(STEPS)
    for _ in range(STEPS):
        gates.gates.sample()
        model(**make_batch()).loss.backward()
        gates.before_step(None)
        if all(gate.binarised for _, gate in gates.bank.items()):
            decided.append(log_alphas(gates.bank))
    assert len(decided) == STEPS // 2 + 1
    assert all(torch.equal(each, decided[0]) for each in decided)


class ByHandAverage(pl.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        now = {name: p.detach().clone() for name, p in module.named_parameters()}
        old = getattr(self, "average", now)
        self.average = {name: 0.5 * old[name] + 0.5 * now[name] for name in now}


def test_averaged_weights_and_gates_are_what_is_pruned():
    gates, by_hand = hg.lightning.HeadGates(**OPTIONS | {"settle": 0.3}), ByHandAverage()
    ema = pl.callbacks.EMAWeightAveraging(decay=0.5)
    module = train_pl(gates, by_hand, ema)
    assert gates.removed.heads.count() == 7
    for name in ("bert.classifier.weight", "bert.bert.encoder.layer.1.output.dense.weight"):
        torch.testing.assert_close(module.get_parameter(name), by_hand.average[name])
    averaged = [row for name, row in by_hand.average.items() if name.endswith("log_alpha")]
    torch.testing.assert_close(log_alphas(gates.bank), torch.cat(averaged))


def test_an_average_without_gates_is_refused_with_the_order_to_give():
    with pytest.raises(ValueError, match=r"callbacks=\[HeadGates\(...\), EMAWeightAveraging"):
        pl.Trainer(
            logger=False,
            enable_checkpointing=False,
            accelerator="cpu",
            callbacks=[pl.callbacks.EMAWeightAveraging(), hg.lightning.HeadGates(heads=3)],
        ).fit(Module(), torch.utils.data.DataLoader(rows_of(make_batch())))


def test_a_copy_of_a_gated_model_is_averaged_apart_from_it():
    model = make_model()
    bank = attach(model, heads=3)
    half = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=half)
    with torch.no_grad():
        for gate in bank.parameters():
            gate.sub_(2.0)
    average.update_parameters(model), average.update_parameters(model)
    assert log_alphas(average.module.head_gates).tolist() == pytest.approx([0.5] * 10)
    assert log_alphas(bank).tolist() == pytest.approx([0.5] * 10)


def test_a_script_that_is_started_again_after_its_end_removes_and_saves(tmp_path):
    options = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    last = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    train_pl(first := hg.lightning.HeadGates(**OPTIONS), last, **options)
    again = hg.lightning.HeadGates(**OPTIONS, save=tmp_path / "pruned")
    last = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    train_pl(again, last, path=tmp_path / "last.ckpt", **options)
    assert again.removed.heads.count() == first.removed.heads.count() == 7
    assert (tmp_path / "pruned/config.json").is_file()


class CutPl(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 7:
            raise PowerCut


def test_a_killed_fit_goes_on_as_if_undisturbed(tmp_path):
    options = {"batches": 2, "sentences": 8, "enable_checkpointing": True}

    def ran(folder, *more, path=None):
        gates = hg.lightning.HeadGates(**OPTIONS | {"settle": 0.2})
        keep = pl.callbacks.ModelCheckpoint(tmp_path / folder, save_top_k=-1, every_n_train_steps=5)
        module = Module(optimizer=torch.optim.AdamW)
        torch.manual_seed(0 if path is None else 5)  # the seed of the noise is in the checkpoint
        return train_pl(gates, keep, *more, module=module, path=path, **options).bert, gates

    first, whole = ran("whole")
    with pytest.raises(PowerCut):
        ran("cut", CutPl())
    second, resumed = ran("cut", path=next((tmp_path / "cut").glob("*step=5.ckpt")))
    assert torch.equal(log_alphas(whole.bank), log_alphas(resumed.bank))
    assert torch.equal(logits_of(first), logits_of(second))


# ---------------------------------------------------------------- gates that would learn nothing


class Frozen(Module):
    """A head on features that are no part of the graph."""

    def training_step(self, batch, index):
        features = self.bert.bert(input_ids=batch["input_ids"]).last_hidden_state[:, 0].detach()
        return torch.nn.functional.cross_entropy(self.bert.classifier(features), batch["labels"])


class Unseen(Module):
    """The optimizer steps past the trainer."""

    automatic_optimization = False

    def training_step(self, batch, index):
        self.manual_backward(self.bert(**batch).loss)
        self.optimizers(use_pl_optimizer=False).step()


class NoNumber(Module):
    def training_step(self, batch, index):
        return self.bert(**batch).loss * float("nan")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Frozen, r"the loss has not reached the gates of encoder\.0\.enc-self, encoder\.1\.enc-self in 20"),
        (Unseen, r"the gates have not made a step, so nothing is removed.*self\.optimizers\(\)"),
        (NoNumber, r"gradient of the gates was NaN or infinite in 21 steps in a row: lower the"),
    ],
)
def test_a_training_that_teaches_no_gate_ends_with_a_word_and_all_heads(module, message):
    gates, module = hg.lightning.HeadGates(**OPTIONS), module()
    with pytest.raises(ValueError, match=message):
        train_pl(gates, module=module, max_steps=25, max_epochs=25)
    assert gates.removed is None
    assert sum(site.heads for site in hg.gates.find_sites(module)) == 10


class Loaded(Module):
    """As `from_pretrained` gives a model and Lightning leaves it."""

    def on_train_start(self):
        self.eval()


def test_gates_of_a_model_in_evaluation_mode_learn_from_the_loss(same_noise, by_hand):
    gates = hg.lightning.HeadGates(**OPTIONS)
    check_as_by_hand(train_pl(gates, module=Loaded()).bert, gates, by_hand)


def test_gates_that_all_close_are_said_once_in_a_trainer_too(tmp_path):
    gates = hg.hf.HeadGates(lam=50.0, lr=1.0, warmup=0, settle=0.0)
    with pytest.warns(UserWarning, match="closed at step") as caught:
        train_hf(tmp_path, gates, max_steps=40)
    said = [str(each.message) for each in caught if "closed at step" in str(each.message)]
    assert len(said) == 1
    assert said[0].startswith("all 10 gated heads are closed at step 20: lambda 50 is too large")


def test_neurons_that_are_too_many_are_not_called_heads():
    gates = hg.hf.HeadGates(heads=9, neurons=6)
    gates.put_on(make_model(), seed=0)
    expected = gates.bank.open_prob().select(["enc-ffn"]).sum() - 6
    with pytest.warns(UserWarning, match=rf": {expected:.1f} neurons more were expected to be open"):
        gates.say_if_too_early()


# ---------------------------------------------------------------- two processes, and mistakes


DISTRIBUTED = """
import os, sys
from pathlib import Path
import torch
import headgates as hg
from tests import test_callbacks as here
here.fix_noise()
place = Path(sys.argv[1])
gates = hg.hf.HeadGates(**here.OPTIONS)
model = here.train_hf(place, gates, per_device_train_batch_size=4, ddp_backend="gloo")
rank = int(os.environ["RANK"])
torch.save([here.log_alphas(gates.bank), here.logits_of(model)], place / f"hf-{rank}.pt")
gates = hg.lightning.HeadGates(**here.OPTIONS)
module = here.train_pl(gates, sentences=8, devices=2, strategy="ddp")
torch.save([here.log_alphas(gates.bank), here.logits_of(module.bert)], place / f"pl-{rank}.pt")
"""


def test_two_processes_learn_the_gates_of_one(tmp_path, by_hand):
    (tmp_path / "ranks.py").write_text(DISTRIBUTED, encoding="utf-8")
    done = Command([str(tmp_path / "ranks.py"), str(tmp_path)], tmp_path / "said", ranks=2).end()
    assert [code for code, _, _ in done] == [0, 0], done
    for trainer in ("hf", "pl"):
        left, right = (torch.load(tmp_path / f"{trainer}-{rank}.pt") for rank in range(2))
        assert torch.equal(left[0], right[0])
        for found, expected in zip(left, by_hand, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"nothing says how many heads stay: give heads=24, neurons=768, or lam=0.01"),
        ({"heads": 3, "settle": 1.0}, "expected settle to be a share of the steps"),
        ({"heads": 3, "lr": "1e-2"}, "lr: expected a number, got '1e-2'"),
        ({"heads": 3, "lr": -1}, "expected lr, the learning rate of the gates, above 0, got -1"),
        ({"heads": 3, "refit": (each for each in [])}, "a list of batches or a loader.* got a generator"),
    ],
    ids=["nothing", "settle", "lr as a text", "lr", "generator"],
)
def test_options_that_say_nothing_are_refused_before_the_training(options, message):
    with pytest.raises(ValueError, match=message):
        hg.hf.HeadGates(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "heads=0: expected 2 to 10, which the model can keep"),
        ({"heads": 11}, "heads=11: expected 2 to 10, which the model can keep"),
        ({"heads": {"enc-self": 1}}, r"heads\['enc-self'\]=1: expected 2 to 10, which the model can keep"),
        ({"heads": 4, "neurons": 27}, "neurons=27: expected 0 to 26, which the model can keep"),
    ],
    ids=["none", "more", "kind", "neurons"],
)
def test_numbers_that_cannot_stay_are_refused_in_the_words_of_the_caller(options, message):
    model = make_model()
    with pytest.raises(ValueError, match=message):
        hg.hf.HeadGates(**options).put_on(model, seed=0)
    assert not hasattr(model, "head_gates")
    if not isinstance(options["heads"], dict):
        with pytest.raises(ValueError, match=message):
            hg.prune(model, [make_batch()], **options)


def test_a_sharded_training_is_refused_and_no_gate_stays():
    model, args = make_model(), SimpleNamespace(deepspeed=None, fsdp=["full_shard"], n_gpu=0)
    with pytest.raises(ValueError, match="not with DeepSpeed, FSDP or DataParallel"):
        hg.hf.HeadGates(heads=3).on_train_begin(args, None, None, model=model)
    assert not hasattr(model, "head_gates")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("hf", "transformers", "hf"), ("lightning", "pytorch_lightning", "train")],
)
def test_a_missing_package_is_one_line_that_says_what_to_install(monkeypatch, name, package, extra):
    monkeypatch.delattr(hg, name)  # first: it imports the module where no test has asked for it yet
    monkeypatch.delitem(sys.modules, f"headgates.{name}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'headgates\[{extra}\]'") as caught:
        getattr(hg, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["not empty", "cannot be made"])
def test_a_folder_that_cannot_be_saved_to_is_refused_before_the_training(words, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    save = tmp_path if words == "not empty" else tmp_path / "mine.txt" / "pruned"
    module = torch.nn.Module()
    with pytest.raises(OSError, match=words.replace("not empty", "not an empty")):
        hg.lightning.HeadGates(heads=2, save=save).put_on(module, seed=0)
    assert (tmp_path / "mine.txt").read_text() == "kept"
