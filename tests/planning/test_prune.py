"""A model pruned in one call: the numbers that were asked for hold, and the outputs are those of the model
with zeroed columns and skipped layers."""

import copy

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from headgates.analysis.batches import batch_loss
from headgates.gates import FFN_KINDS, KINDS, HeadMap, Subnet, attach, detach, find_sites, save_pruned
from headgates.gates.depth import stacks_of
from headgates.planning import timing
from headgates.planning.plan_text import sizes_of_batches
from headgates.planning.prune import prune
from tests.worlds.families import BY_NAME
from tests.worlds.labelled_models import MODELS, made


@pytest.fixture
def parameters_are_time(monkeypatch):
    """A run takes as long as the model has parameters, and a little more when it lost some."""

    def seconds(self, model):
        self.run(model)
        numbers = sum(each.numel() for each in model.parameters())
        whole = self.__dict__.setdefault("numbers", numbers)
        return numbers * 1e-6 + 0.05e-6 * whole * (numbers < whole)

    monkeypatch.setattr(timing.Timer, "seconds", seconds)


def logits(model, batch) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch).logits


def zeroed(model, subnet: Subnet) -> None:
    """The columns of what goes are zeroed one by one, and layers that go hand on what they get."""
    for site, module in find_sites(model, (*KINDS, *FFN_KINDS)).items():
        names = ("c_proj", "output.dense", "o_proj", "o", "wo", "out_proj", "fc2", "down_proj")
        parts = dict(module.named_modules())
        is_ffn = site.kind in FFN_KINDS
        (name,) = [n for n in names if n in parts and (n != "out_proj" or not is_ffn)][:1]
        weight, stay = parts[name].weight.data, subnet.units[site]
        side = 0 if type(parts[name]).__name__ == "Conv1D" else 1
        width = weight.shape[side] // len(stay)
        for unit in (~stay).nonzero().flatten().tolist():
            weight.narrow(side, unit * width, width).zero_()
    for stack, numbers in subnet.dropped.items():
        for number in numbers:
            layer = stacks_of(model)[stack].layers[number]
            layer.register_forward_hook(hand_on, with_kwargs=True)


def hand_on(_, args, options, output):
    x = args[0] if args else options["hidden_states"]
    return (x, *output[1:]) if isinstance(output, tuple) else x


def say_it_themselves(model, batches) -> None:
    """Labels are what the model says, so that whatever it loses shows."""
    for batch in batches:
        batch["labels"] = logits(model, batch).argmax(-1).roll(1 if model.can_generate() else 0, 1)


@pytest.mark.parametrize("name", MODELS)
def test_the_share_of_parameters_holds_and_nothing_but_what_goes_changes_the_outputs(name):
    model, batches = made(name)
    before = copy.deepcopy(model)
    found = prune(model, batches, params=0.7, refit=None)
    numbers = [sum(each.numel() for each in own.parameters()) for own in (before, model)]
    assert list(found.parameters) == numbers
    assert numbers[1] <= 0.7 * numbers[0]
    assert Subnet.of(model) == found.subnet.kept
    zeroed(before, found.subnet)
    torch.testing.assert_close(logits(model, batches[0]), logits(before, batches[0]), rtol=1e-4, atol=1e-5)
    assert found.loss[1] == pytest.approx(
        batch_loss(model, batches[3]).item() / units(name, batches[3]), rel=1e-4
    )
    if model.can_generate():
        given = {key: each for key, each in batches[0].items() if key != "labels"}
        assert model.generate(**given, max_new_tokens=3, min_new_tokens=3, do_sample=False).shape[0] == 4


def units(name: str, batch) -> int:
    labels = batch["labels"]
    return labels[:, 1:].numel() if name in ("gpt2", "llama") else labels.numel()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("choose", ["plan", "importance"])
def test_exactly_as_many_heads_and_neurons_stay_as_asked(name, choose):
    model, batches = made(name)
    found = prune(model, batches, heads=6, neurons=64, choose=choose)
    left = Subnet.of(model).units
    assert (left.select(KINDS).count(), left.select(FFN_KINDS).count()) == (6, 64)
    assert found.subnet.dropped == {}
    assert "6 of 8 heads, 64 of 96 neurons" in str(found)


def test_both_towers_are_pruned_though_the_mask_is_of_the_text_alone():
    family = BY_NAME["CLIP"]
    model, batch = family.model(), family.batch(6)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batches = [{name: each.roll(turn, 1) for name, each in batch.items()} for turn in range(4)]
    before = copy.deepcopy(model)
    found = prune(
        model,
        batches,
        params=0.8,
        refit=None,
        loss=lambda model, batch: model(**batch, return_loss=True).loss,
    )
    numbers = [sum(each.numel() for each in own.parameters()) for own in (before, model)]
    assert numbers[1] <= 0.8 * numbers[0]
    assert {site.tower for site in found.subnet.units} == {"text_model", "vision_model"}
    zeroed(before, found.subnet)
    torch.testing.assert_close(
        family.output(model, batch), family.output(before, batch), rtol=1e-4, atol=1e-5
    )


class Boxes(transformers.BertForTokenClassification):
    """As detection models, it takes a list with the labels of each row."""

    def forward(self, input_ids, labels=None):
        output = super().forward(input_ids)
        if labels is not None:
            output.loss = cross_entropy(output.logits[:, 0], torch.tensor([each["label"] for each in labels]))
        return output


def test_a_loss_of_one_s_own_reads_labels_that_are_a_list():
    batch = {"input_ids": torch.tensor([[4, 5, 6], [7, 8, 9]]), "labels": [{"label": 0}, {"label": 1}]}
    config = BY_NAME["BERT"].model().config
    for choose in ("plan", "importance"):
        report = prune(
            Boxes(config),
            [batch] * 2,
            heads=3,
            choose=choose,
            loss=lambda model, batch: 2 * model(**batch).loss,
        )
        assert report.subnet.units.select(KINDS).count() == 3
    with pytest.raises(ValueError, match="the loss of Boxes is not known for a batch of"):
        prune(Boxes(config), [batch], heads=3)


def test_what_does_nothing_goes_first():
    """One head, 16 neurons of one layer, and in another model a layer, give nothing to the output."""
    model, batches = made("gpt2")
    first, second = model.transformer.h
    with torch.no_grad():
        first.attn.c_proj.weight[8:12] = 0.0
        second.mlp.c_proj.weight[16:32] = 0.0
    before = logits(model, batches[0])
    say_it_themselves(model, batches)

    def sharp(own, batch):  # of a model that is sure of what it says: any other output costs
        said = 30 * own(input_ids=batch["input_ids"]).logits[:, :-1]
        return cross_entropy(said.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")

    found = prune(model, batches, heads=7, neurons=80, refit=None, loss=sharp)
    closed = {site.name: (~row).nonzero().flatten().tolist() for site, row in found.subnet.units.items()}
    assert {name: own for name, own in closed.items() if own} == {
        "decoder.0.dec-self": [2],
        "decoder.1.dec-ffn": [*range(16, 32)],
    }
    torch.testing.assert_close(logits(model, batches[0]), before)
    model, batches = made("bert")
    layer = model.bert.encoder.layer[0]
    with torch.no_grad():
        for each in (layer.attention.output, layer.output):
            each.dense.weight.zero_()
            each.dense.bias.zero_()
    say_it_themselves(model, batches)
    found = prune(model, batches, params=0.75)
    assert found.subnet.dropped == {"encoder": [0]}


def test_a_score_of_ones_own_decides_what_stays():
    model, batches = made("bert")
    numbers = HeadMap({site: torch.arange(4.0) for site in find_sites(model)})
    found = prune(model, batches, heads=4, choose=lambda model, batches: numbers)
    assert all(found.subnet.units[site].tolist() == [False, False, True, True] for site in numbers)


def test_refitted_weights_lose_less_than_zeroed_ones():
    losses = []
    for refit in ("out", None):
        model, batches = made("llama")
        say_it_themselves(model, batches)
        losses.append(prune(model, batches, neurons=32, refit=refit).loss)
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] < losses[1][1]


def test_a_shape_that_is_slower_than_planned_is_planned_again(parameters_are_time):
    model, batches = made("bert")
    calls = []
    found = prune(model, batches, speedup=1.2, run=lambda own: calls.append(own), layers=False)
    was, now = found.parameters
    assert found.speedup == pytest.approx(was / (now + 0.05 * was), rel=0.01)
    assert 1.18 < found.speedup < 1.35
    assert calls
    assert set(map(id, calls)) == {id(model)}
    assert f"{found.speedup:.2f} measured" in str(found)
    assert "timed       run(model), the CPU, " in str(found)


def test_what_was_timed_names_the_batches_of_the_text_with_their_rows():
    batches = [{"return_dict": True, "input_ids": torch.ones(rows, 3)} for rows in (8, 8, 5)]
    assert sizes_of_batches(batches) == "3 batches of 5 to 8 rows"
    assert sizes_of_batches(batches[:1]) == "1 batch of 8 rows"


def test_multiply_adds_are_those_of_the_run():
    model, batches = made("llama")

    def run(own):
        own(input_ids=batches[0]["input_ids"])

    whole = timing.multiply_adds(run)(model)
    found = prune(model, batches, macs=0.6, run=run)
    assert found.measured[0] == pytest.approx(timing.multiply_adds(run)(model) / whole)
    assert found.measured[0] <= 0.605


def some_sites(model, batches):
    first, *_ = find_sites(model)
    return HeadMap({first: torch.arange(float(first.heads))})


def without_numbers(model, batches):
    return HeadMap({site: torch.full((site.heads,), torch.nan) for site in find_sites(model)})


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ({}, "expected one of heads=, neurons="),
        ({"heads": 2, "params": 0.5}, "expected one of heads=, neurons="),
        ({"params": 60}, "params: expected the share that stays, above 0 and below 1, got 60"),
        ({"speedup": 0.5}, "speedup: expected more than 1"),
        ({"heads": 2.5}, "heads: expected a whole number, got 2.5"),
        ({"heads": 9}, "heads=9: expected 4 to 8"),
        ({"heads": 5}, "2 heads share a key head and go together; ask for 4 or 6"),
        ({"params": 0.01}, r"params=0.01 cannot be met: nothing costs 1.00% .* it costs [0-9.]+%"),
        ({"heads": 4, "choose": "importnce"}, "did you mean 'importance'"),
        ({"heads": 4, "choose": 42}, "choose: expected the name of a score, a function .* got 42"),
        ({"heads": 4, "choose": some_sites}, "choose: there are no numbers for decoder.1.dec-self"),
        ({"heads": 4, "choose": without_numbers}, "choose: expected finite numbers, got .*nan"),
        ({"heads": 4, "choose": lambda model, batches: 42}, "returns a HeadMap, got 42"),
        ({"heads": 4, "refit": "all"}, "unknown refit 'all'"),
        ({"heads": 4, "refit": True}, "unknown refit True"),
        ({"neurons": 32, "multiple": 0}, "multiple: expected a whole number of at least 1, got 0"),
        ({"heads": 4, "run": print}, "run= is what is timed or counted"),
        ({"speedup": 2, "run": 3}, "run: expected a function, got 3"),
        ({"heads": 4, "loss": 3}, "loss: expected a function, got 3"),
        ({"heads": 4, "loss": lambda model, batch: 1.0}, "a tensor of one number for a batch, got a float"),
        ({"heads": 4, "loss": lambda model, batch: torch.zeros(2)}, r"one number for a batch, got \(2,\)"),
        ({"heads": 4, "loss": lambda model, batch: torch.tensor(torch.nan)}, "held-out batches is nan"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_and_the_model_stays(asked, wrong):
    model, batches = made("llama")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(ValueError, match=wrong):
        prune(model, batches, **asked)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert len(before) == len(model.state_dict())


@pytest.mark.parametrize(
    ("batches_of", "wrong"),
    [
        (lambda batches: [], "there are no batches"),
        (lambda batches: batches[0], "expected a list of batches or a loader, got a dict"),
        (lambda batches: None, "expected a list of batches or a loader, got a NoneType"),
        (lambda batches: [each["input_ids"] for each in batches], "that are mappings, got a Tensor"),
        (lambda batches: [{k: each[:0] for k, each in batches[0].items()}], "leave empty batches out"),
        (lambda batches: [{"input_ids": each["input_ids"]} for each in batches], "add labels to the batch"),
    ],
    ids=["none", "one", "nothing", "tensors", "empty", "unlabelled"],
)
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_batches_that_are_none_are_refused_in_words_of_our_own(name, batches_of, wrong):
    model, batches = made(name)
    with pytest.raises(ValueError, match=wrong):
        prune(model, batches_of(batches), heads=4)


@pytest.mark.parametrize("asked", [{"params": 0.75}, {"heads": 6, "neurons": 79, "choose": "importance"}])
def test_even_layers_are_alike_and_transformers_itself_opens_their_folder(asked, tmp_path):
    model, batches = made("llama")
    found = prune(model, batches, even=True, **asked)
    widths = {(site.kind, int(row.sum())) for site, row in found.subnet.kept.units.items()}
    assert len(widths) == 2
    if "heads" in asked:  # 3 heads of a layer would part those that share a key head
        assert widths == {("dec-self", 2), ("dec-ffn", 32)}
    save_pruned(model, tmp_path / "even")
    opened = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "even").eval()
    torch.testing.assert_close(logits(opened, batches[0]), logits(model, batches[0]))


def test_layers_that_differ_cannot_become_even_and_the_model_stays():
    model, batches = made("bert")
    first = next(site for site in find_sites(model))
    Subnet.of(model).without(HeadMap({first: torch.arange(4) == 1})).remove(model)
    with pytest.raises(ValueError, match=r"even: expected as many .*got 3 at encoder\.0\.enc-self, 4 at"):
        prune(model, batches, heads=4, even=True)
    assert Subnet.of(model).units.select(KINDS).count() == 7


def test_no_neurons_at_all_can_stay():
    model, batches = made("bert")
    assert prune(model, batches, neurons=0).subnet.units.select(FFN_KINDS).count() == 0
    assert torch.isfinite(logits(model, batches[0])).all()


def test_a_model_with_gates_is_refused():
    model, batches = made("bert")
    attach(model, heads=4)
    with pytest.raises(ValueError, match="already has gates"):
        prune(model, batches, heads=4)
    detach(model)
