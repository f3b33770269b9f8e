"""What a model does with one sentence, against a copy of the model whose columns of W_O are zeroed."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from headgates.bridges.classifier import Labeller, new_classifier
from headgates.data.batch import pad
from headgates.data.encoder_vocab import write_vocabs
from headgates.data.vocab import load_vocabs
from headgates.explain.sentence_model import Change, SentenceModel
from headgates.gates import HeadMap, attach, find_sites
from headgates.models.search import best_hypotheses
from tests.worlds.tiny_encoder import LABELS
from tests.worlds.translators import settled

TEXT = "a big cat sees the small dog ."


def model_of(predictor, **options) -> SentenceModel:
    source = SimpleNamespace(predictor=predictor, translator=predictor)
    return SentenceModel(source, **{"longest": 40, **options})


def without(model, heads):
    """A copy of the model with these heads' columns of W_O zeroed, made before any gate is attached."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for site, attention in find_sites(model).items():
            for own, head in heads:
                if own == site:
                    width = attention.out_proj.weight.shape[1] // site.heads
                    attention.out_proj.weight[:, head * width : (head + 1) * width] = 0.0
    return model


def loss(model, ids, target, specials):
    """The sum of -log p of a target's tokens, in nats, one forward pass."""
    source, target_in = pad([ids], specials, end=True), pad([target[:-1]], specials, begin=True)
    with torch.no_grad():
        return float(F.cross_entropy(model(source, target_in)[0], torch.tensor(target), reduction="sum"))


def said_by(translator, model, text):
    """What greedy search of this model says, the end last."""
    source = pad(translator.encode([text]), model.source_specials, end=True)
    ((best,),) = best_hypotheses(model, source, replace(translator.search, beam=1))
    return [*best.ids, model.target_specials.end]


@pytest.mark.parametrize(
    "shape", [{}, {"norm": "post", "joint": True}, {"closed": "uneven"}, {"decoder_mixer": "ssru"}]
)
def test_the_effect_of_a_head_is_the_loss_with_its_columns_zeroed(make_translator, shape):
    translator = settled(make_translator(**shape))
    plain, specials = copy.deepcopy(translator.model), translator.source_vocab.specials
    ids = translator.encode([TEXT])[0]
    model = model_of(translator)
    target = model.as_it_is(TEXT).ids
    assert target == said_by(translator, plain, TEXT)
    heads = list(model.heads.values())
    for shut in (frozenset(), frozenset([heads[0], heads[-1]])):
        effects = model.effects(TEXT, shut)
        for name, head in model.heads.items():
            closed, opened = (
                loss(without(plain, each), ids, target, specials) for each in (shut | {head}, shut - {head})
            )
            assert effects[name] == pytest.approx(closed - opened, abs=2e-5), name
    assert max(map(abs, effects.values())) > 1e-2


@pytest.mark.parametrize("shape", [{}, {"decoder_mixer": "ssru"}])
def test_what_it_says_with_heads_shut_is_what_greedy_search_says_without_their_columns(
    make_translator, shape
):
    translator = settled(make_translator(**shape))
    plain = copy.deepcopy(translator.model)
    model = model_of(translator)
    whole, heads, changed = model.as_it_is(TEXT).ids, list(model.heads.values()), 0
    for number in range(len(heads)):
        shut = frozenset(heads[number::3])
        expected = said_by(translator, without(plain, shut), TEXT)
        assert model.say(TEXT, Change(shut)).ids == expected
        from_draft = model.say(TEXT, Change(shut), draft=whole)
        assert from_draft.ids == expected
        step_by_step = model.say(TEXT, Change(shut)).log_p
        seen = torch.isfinite(step_by_step)
        torch.testing.assert_close(from_draft.log_p[seen], step_by_step[seen], atol=2e-5, rtol=1e-4)
        changed += expected != whole
    assert changed, "or the draft was never rejected"


def test_a_beginning_is_kept_and_the_model_goes_on_from_it(make_translator):
    translator = settled(make_translator())
    model = model_of(translator)
    specials = translator.target_vocab.specials
    token = next(i for i in range(4, 20) if i != model.as_it_is(TEXT).ids[0])
    said = model.say(TEXT, Change(), prefix=[token, token])
    assert said.ids[:2] == [token, token]
    assert said.ids[-1] == specials.end
    source, target_in = (
        pad([translator.encode([TEXT])[0]], specials, end=True),
        pad([said.ids[:-1]], specials, begin=True),
    )
    with torch.no_grad():
        log_p = torch.log_softmax(translator.model(source, target_in)[0], -1)
    torch.testing.assert_close(
        said.chosen, log_p[torch.arange(len(said.ids)), said.ids], atol=2e-5, rtol=1e-4
    )
    for prefix in ([specials.padding], [specials.end, token], [10**6], [-1], [token] * 99):
        with pytest.raises(ValueError, match="begin"):
            model.say(TEXT, Change(), prefix=prefix)


def test_all_cross_heads_from_a_second_sentence_give_the_probabilities_of_that_sentence(make_translator):
    # the decoder sees the source by cross-attention alone
    translator = settled(make_translator())
    first, second = "the cat", "the dog"
    model = model_of(translator)
    assert model.encode(first) != model.encode(second)
    target = model.as_it_is(first).ids
    cross = frozenset(head for head in model.heads.values() if head[0].kind == "cross")
    patched = model.token_log_probs(first, target, [Change(patched=cross), Change()], other=second)
    for row, text in zip(patched, (second, first), strict=True):
        expected = model.token_log_probs(text, target, [Change()])[0]
        torch.testing.assert_close(row, expected, atol=2e-5, rtol=1e-4)
    assert model.say(first, Change(patched=cross), other=second).ids == model.say(second, Change()).ids
    assert max(map(abs, model.patch_effects(first, first).values())) < 1e-5  # a sentence patched by itself
    assert max(map(abs, model.patch_effects(first, second).values())) > 1e-2
    with pytest.raises(ValueError, match="equal lengths"):
        model.patch_effects(first, TEXT)


def test_patching_one_head_is_giving_w_o_its_columns_other_input(make_translator):
    translator = settled(make_translator())
    first, second = "the cat", "the dog"
    model = model_of(translator)
    target = model.as_it_is(first).ids
    effects, specials = model.patch_effects(first, second), translator.source_vocab.specials
    plain = without(translator.model, [])  # a copy, still with open masks
    for site, attention in list(find_sites(plain).items()):
        found = {}
        keep = attention.out_proj.register_forward_pre_hook(lambda _, z, found=found: found.update(z=z[0]))
        loss(plain, translator.encode([second])[0], target, specials)
        keep.remove()
        for head in range(site.heads):
            columns = slice(head * attention.head_width, (head + 1) * attention.head_width)

            def swap(_, inputs, columns=columns, found=found):
                z = inputs[0].clone()
                z[..., columns] = found["z"][..., columns]
                return (z,)

            ids = translator.encode([first])[0]
            whole = loss(plain, ids, target, specials)
            with attention.out_proj.register_forward_pre_hook(swap):
                rise = loss(plain, ids, target, specials) - whole
            assert effects[f"{site.name}.{head}"] == pytest.approx(rise, abs=2e-5)


def test_a_run_with_gates_starts_with_its_own_heads_shut(make_translator):
    translator = settled(make_translator())
    plain = copy.deepcopy(translator.model)
    closed = {site: torch.arange(site.heads) == site.layer for site in find_sites(plain)}
    attach(
        translator.model,
        gate="mask",
        xi=HeadMap({site: ~row for site, row in closed.items()}).map(torch.Tensor.double),
    )
    model = model_of(translator)
    shut = {(site, head) for site, row in closed.items() for head in range(site.heads) if row[head]}
    assert model.start == shut
    assert model.as_it_is(TEXT).ids == said_by(translator, without(plain, shut), TEXT)
    assert model.say(TEXT, Change()).ids == said_by(translator, plain, TEXT)  # all of them opened again


def test_neurons_that_a_run_has_closed_stay_closed(make_translator):
    translator = settled(make_translator())
    generator = torch.Generator().manual_seed(7)
    sites = find_sites(translator.model, kinds="all")
    xi = HeadMap({site: (torch.rand(site.heads, generator=generator) < 0.5).double() for site in sites})
    whole = said_by(translator, copy.deepcopy(translator.model), TEXT)
    attach(translator.model, gate="mask", kinds="all", xi=xi)
    expected = said_by(translator, translator.model, TEXT)
    ids, specials = translator.encode([TEXT])[0], translator.source_vocab.specials
    lost = loss(translator.model, ids, expected, specials)
    model = model_of(translator)
    assert model.as_it_is(TEXT).ids == expected != whole
    found = model.token_log_probs(TEXT, expected, [Change(model.start)])
    assert float(-found.sum()) == pytest.approx(lost, abs=2e-5)


def test_attention_is_that_of_the_model_without_the_heads(make_translator):
    translator = settled(make_translator(), end=6.0)  # or no translation would end before its limit
    plain, specials = copy.deepcopy(translator.model), translator.source_vocab.specials
    model = model_of(translator)
    shut = frozenset(list(model.heads.values())[:3])
    said = model.say(TEXT, Change(shut), draft=model.say(TEXT, Change(shut)).ids)
    weights = {}
    source, target_in = (
        pad([translator.encode([TEXT])[0]], specials, end=True),
        pad([said.ids[:-1]], specials, begin=True),
    )
    without(plain, shut)(source, target_in, weights)
    for found in (model.attention(TEXT, said.ids, Change(shut)), said.weights):
        assert found.keys() == weights.keys()
        for name, each in weights.items():
            torch.testing.assert_close(found[name], each[0].detach(), atol=1e-5, rtol=1e-4)


def test_no_sentence_and_a_long_one_are_refused(make_translator):
    model = model_of(make_translator(), longest=5)
    with pytest.raises(ValueError, match="empty"):
        model.encode("  ")
    with pytest.raises(ValueError, match="expected at most 5"):
        model.encode(TEXT)


def test_a_classifiers_label_and_effects(encoder, tmp_path):
    write_vocabs(encoder, tmp_path, LABELS, max_positions=23)
    source_vocab, labels = load_vocabs(tmp_path)
    torch.manual_seed(5)
    classifier = new_classifier(encoder, len(LABELS), source_vocab.specials).eval()
    text = "the funny film and the poor end"
    expected = Labeller(classifier, source_vocab, labels).label([text])
    plain = copy.deepcopy(classifier)
    model = model_of(Labeller(classifier, source_vocab, labels))
    said = model.as_it_is(text)
    assert [model.written(said.ids)] == expected
    (pair,) = source_vocab.encode(["the funny film\tthe poor end"])
    assert pair != source_vocab.encode(["the funny film the poor end"])[0]
    assert model.encode(" the  funny film\t the poor end") == pair
    assert model.encode("the funny film ||| the poor end") == pair
    source = pad([model.encode(text)], source_vocab.specials, end=True)
    effects = model.effects(text, frozenset())
    for name, (site, head) in model.heads.items():
        weight = plain.net.bert.encoder.layer[site.layer].attention.output.dense.weight
        width, before = weight.shape[1] // site.heads, weight.detach().clone()
        with torch.no_grad():
            whole = torch.log_softmax(plain(source), -1)[0, said.ids[0]]
            weight[:, head * width : (head + 1) * width] = 0.0
            closed = torch.log_softmax(plain(source), -1)[0, said.ids[0]]
            weight.copy_(before)
        assert effects[name] == pytest.approx(float(whole - closed), abs=1e-5)
    weights = model.attention(text, said.ids, Change())
    torch.testing.assert_close(weights["encoder.1.enc-self"].sum(-1), torch.ones(4, source.shape[1]))


def test_a_model_of_another_task_is_refused():
    folder = SimpleNamespace(path="runs/copies")
    source = SimpleNamespace(predictor=object(), config={"task": "copying"}, folder=folder)
    with pytest.raises(ValueError, match="its task is copying"):
        SentenceModel(source, longest=9)
