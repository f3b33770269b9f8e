"""Scores of models that are not ours, whose batches are mappings; and ring 1 with torch alone."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.batches import batch_loss, query_tokens, sampled_targets
from headgates.analysis.confidence import confidence
from headgates.analysis.lrp import relevance
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.scores.fisher import fisher
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.scores.obs import obs
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.analysis.syntax import Syntax
from headgates.data.conllu import Tree
from headgates.gates import attach, find_sites
from headgates.planning.prune import prune
from tests.worlds.families import BY_NAME

LENGTHS = (7, 5, 3)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, 31, (3, 7))
    mask = (torch.arange(7) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5"])
def test_every_score_takes_a_model_with_batches_as_mappings(name, batch):
    model = BY_NAME[name].model()
    sites = list(find_sites(model))
    for score in (raw_importance, fisher, fluctuation, obs):
        found = score(model, [batch])
        assert list(found) == sites
        assert torch.isfinite(found.flat()).all()
        assert len(found.flat().unique()) > 1
    assert all(float(row.sum()) == pytest.approx(1) for row in relevance(model, [batch]).share.values())


def test_a_model_with_offloaded_weights_is_scored_as_another_or_refused_in_one_line(batch):
    accelerate = pytest.importorskip("accelerate")
    model = BY_NAME["BERT"].model()
    expected = exact_effects(model, [batch])
    offloaded = accelerate.cpu_offload(model, execution_device="cpu")
    assert {each.device.type for each in offloaded.parameters()} == {"meta"}
    torch.testing.assert_close(exact_effects(offloaded, [batch]).flat(), expected.flat())
    for score in (raw_importance, fisher, relevance, fluctuation, obs, weight_norm):
        with pytest.raises(ValueError, match=r"weights of \w+ are offloaded.*remove_hook_from_module"):
            score(offloaded, [batch])
    for options in ({"choose": "importance"}, {}):
        with pytest.raises(ValueError, match=r"weights of \w+ are offloaded.*remove_hook_from_module"):
            prune(offloaded, [batch], heads=4, **options)


def test_importance_of_a_causal_model_is_that_of_its_sentences_one_by_one(batch):
    model = BY_NAME["GPT-2"].model()
    (site, found), *_ = raw_importance(model, [batch]).items()
    bank, xi = attach(model, gate="mask"), torch.ones(site.heads, requires_grad=True)
    bank.assign({site: xi})
    total = torch.zeros(site.heads)
    for ids, length in zip(batch["input_ids"], LENGTHS, strict=True):
        logits = model(input_ids=ids[None, :length]).logits[0]
        loss = F.cross_entropy(logits[:-1], ids[1:length], reduction="sum")
        total += torch.autograd.grad(loss, xi)[0].abs() / len(LENGTHS)
    torch.testing.assert_close(found.float(), total, rtol=1e-4, atol=1e-7)


def test_the_loss_of_a_batch_is_a_sum_over_its_labels(batch):
    model = BY_NAME["BERT"].model()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    torch.testing.assert_close(batch_loss(model, batch), expected)
    with pytest.raises(ValueError, match="add labels to the batch, or give loss="):
        batch_loss(model, {"input_ids": batch["input_ids"]})


def test_sampled_labels_stand_where_a_causal_model_predicts_them(batch):
    model, real = BY_NAME["GPT-2"].model(), batch["labels"] != -100
    model.forward = lambda input_ids, **_: SimpleNamespace(logits=1000 * F.one_hot(input_ids, 31).float())
    found = sampled_targets(model, batch, torch.Generator())["labels"]  # it predicts the token that it reads
    assert torch.equal(found[:, 1:][real[:, 1:]], batch["input_ids"][:, :-1][real[:, 1:]])
    assert torch.equal(found == -100, ~real)


def test_positions_of_queries_are_those_of_the_mask_the_ids_or_the_labels(batch):
    model, decoder = (BY_NAME[name].model() for name in ("BERT", "T5"))
    (site, *_), (*_, of_decoder) = find_sites(model), find_sites(decoder)
    assert query_tokens(model, site, batch).sum(1).tolist() == list(LENGTHS)
    assert query_tokens(model, site, {"input_ids": batch["input_ids"]}).all()
    batch["labels"] = batch["labels"][:, :4]
    assert torch.equal(query_tokens(decoder, of_decoder, batch), batch["labels"] != -100)
    batch["decoder_input_ids"] = torch.ones(3, 6)
    assert query_tokens(decoder, of_decoder, batch).shape == (3, 6)
    batch["decoder_attention_mask"] = torch.zeros(3, 6)
    assert not query_tokens(decoder, of_decoder, batch).any()
    with pytest.raises(ValueError, match="expected attention_mask or input_ids, or give queries="):
        query_tokens(model, site, {"pixels": torch.ones(2)})


def test_a_layer_that_runs_several_times_attends_as_the_mean_of_its_runs():
    model, runs = BY_NAME["ALBERT"].model(), {}
    model.set_attn_implementation("eager")
    for site, module in find_sites(model).items():
        own = runs[site] = []
        module.register_forward_hook(lambda *given, own=own: own.append(given[-1][-1]))
    ids = torch.randint(3, 31, (4, 7), generator=torch.Generator().manual_seed(0))
    model(input_ids=ids)
    expected = {site: torch.stack(each).amax(-1).mean((0, 1, 3)) for site, each in runs.items()}
    assert max(map(len, runs.values())) > 1
    for site, row in confidence(model, [{"input_ids": ids}]).items():
        torch.testing.assert_close(row.float(), expected[site])


def test_a_head_looks_at_the_same_words_on_whichever_side_the_padding_is():
    model = BY_NAME["BERT"].model().base_model
    model.set_attn_implementation("eager")
    arcs = ((2, 0, 2, 2, 4, 2), ("nsubj", "root", "dobj", "advmod", "amod", "dobj"))
    trees = {
        0: Tree(tuple("abcdef"), *arcs, "a b c d e f"),
        1: Tree(tuple("xyz"), *(each[:3] for each in arcs), "x y z"),
    }
    words = {0: [None, *range(6)], 1: [None, *range(3)]}
    long, short, found = [1, *range(5, 11), 2], [1, 11, 12, 13, 2], []
    for left in (0, 3):
        ids = torch.tensor([long, [0] * left + short + [0] * (3 - left)])
        real = (ids != 0).long()
        places = (real.cumsum(1) - 1).clamp(min=0)
        seen = Syntax(trees, words, ["nsubj", "dobj"])
        batch = {"input_ids": ids, "attention_mask": real, "position_ids": places}
        observe_attention(model, [batch], [seen], special_ids=[1, 2])
        found.append([each.flat() for each in seen.accuracies().values()])
    torch.testing.assert_close(*found)
    assert any(each.any() for each in found[0])
