"""A model whose special tokens have other ids says what the model with ours says, in training, search and
scoring, and after every file."""

import pytest
import torch

from headgates.models.checkpoint import load_model, save_model
from headgates.models.loss import linear_cross_entropy
from headgates.models.translator import Translator
from tests.bridges.test_steps import in_steps
from tests.renumbered import LINES, OTHERWISE, PAIRS, batches, twins
from tests.worlds.searched_model import BEAM, GREEDY, best_ids
from tests.worlds.translators import check_same_n_best, scores_differ

every_numbering = pytest.mark.parametrize("specials", OTHERWISE.values(), ids=OTHERWISE)
TARGETS = [" ".join(map(str, target)) for _, target in PAIRS]


def loss_and_gradients(translator: Translator):
    model = translator.model
    total = 0.0
    for batch in batches(translator):
        memory, bias = model.encode(batch.source)
        hidden = model.decode(memory, bias, batch.target_in)
        padding = model.target_specials.padding
        total = total + linear_cross_entropy(
            hidden, model.output.weight, batch.target_out, padding=padding, smoothing=0.1
        )
    return total, dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(total, list(model.parameters())), strict=True)
    )


@every_numbering
def test_loss_and_gradients_are_the_same(specials):
    ours, theirs = twins(specials)
    (loss, gradients), (other_loss, other_gradients) = loss_and_gradients(ours), loss_and_gradients(theirs)
    torch.testing.assert_close(other_loss, loss)
    for name, vocab, first in (
        ("source_embedding.weight", theirs.source_vocab, 2),
        ("target_embedding.weight", theirs.target_vocab, 3),
        ("output.weight", theirs.target_vocab, 2),
    ):
        # tokens that share an id share a row too; pieces have rows of their own
        torch.testing.assert_close(
            other_gradients.pop(name)[vocab.ids[first:]], gradients.pop(name)[first:], rtol=1e-4, atol=1e-5
        )
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name], gradient, rtol=1e-4, atol=1e-5)


@every_numbering
@pytest.mark.parametrize("run", [lambda each: each, in_steps], ids=["model", "exported programs"])
def test_every_search_finds_the_same_and_scores_are_the_same(specials, run):
    ours, theirs = twins(specials)
    theirs = run(theirs)
    for beam in (1, 3):
        check_same_n_best(ours, theirs, LINES, beam)
    assert scores_differ(ours, theirs, LINES[:5], TARGETS) < 1e-3


@every_numbering
def test_what_may_not_be_produced_never_is_however_probable(specials):
    _, theirs = twins(specials)
    with torch.no_grad():
        theirs.model.output.weight[list(specials.never_produced), 0] = 2.0
        theirs.model.output.weight[list(specials.never_produced), 1:] = 0.0
    assert specials.end not in specials.never_produced
    for batch in batches(theirs):
        for search in (GREEDY, BEAM):
            found = best_ids(theirs.model, batch.source, search)
            assert found
            assert not any(
                {*specials.never_produced, specials.end} & {*ids} for best in found for ids in best
            )


@every_numbering
def test_a_checkpoint_knows_the_special_tokens(specials, tmp_path):
    _, theirs = twins(specials)
    save_model(tmp_path / "best.pt", theirs.model)
    loaded = load_model(tmp_path / "best.pt")
    assert (loaded.source_specials, loaded.target_specials) == (specials, specials)


def test_a_vocabulary_that_numbers_otherwise_than_the_model_is_refused():
    ours, theirs = twins(OTHERWISE["among the pieces"])
    with pytest.raises(
        ValueError, match=r"numbers the target side's special tokens as SpecialTokens\(padding=0.*padding=17"
    ):
        Translator(ours.model, ours.source_vocab, theirs.target_vocab)
