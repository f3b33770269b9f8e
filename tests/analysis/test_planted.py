"""Every analysis finds in the planted model exactly what was planted."""

from collections import Counter, defaultdict

import pytest
import torch

from headgates.analysis.alignment import Alignment, Entropy
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.confidence import Confidence
from headgates.analysis.positions import THRESHOLD, Positions
from headgates.analysis.rare_words import RareWords
from headgates.analysis.roles import MARGIN, RARE_SHARE
from headgates.analysis.scores.importance import importance
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite, attach, detach, find_sites
from tests.worlds.planted import (
    COUNTS,
    HEADS,
    LONGEST,
    SITES,
    planted_batches,
    planted_model,
    planted_pairs,
    true_heads,
)

PAD = SpecialTokens().padding

PAIRS = planted_pairs()
WORDS = sum(len(pair.words) for pair in PAIRS)


@pytest.fixture(scope="module")
def model():
    return planted_model()


@pytest.fixture(scope="module")
def weights(model):
    """One sentence at a time: pair -> site -> (H, L, S)."""

    class Keep:
        def __init__(self):
            self.seen = []

        def add(self, seen):
            self.seen.append({site.name: each[0] for site, each in seen.weights.items()})

    keep = Keep()
    observe_attention(model, planted_batches(PAIRS, 1), [keep])
    return keep.seen


def of(role: str, kind: str) -> tuple[str, int]:
    return next((site, head) for site, head in HEADS[role] if kind in site)


def observed(model, observer, **options):
    observe_attention(model, planted_batches(PAIRS), [observer], **options)
    return observer


def accuracy(model) -> float:
    """The share of target tokens whose logit is the largest."""
    right = total = 0
    for batch in planted_batches(PAIRS):
        with torch.no_grad():
            best = model(batch.source, batch.target_in).argmax(2)
        right += int(((best == batch.target_out) & (batch.target_out != PAD)).sum())
        total += batch.target_tokens
    return right / total


def test_the_sentences_are_trees_with_every_relation_and_differ_in_length():
    for pair in PAIRS:
        assert len(pair.words) <= LONGEST
        assert len(pair.target) == 2 * len(pair.words) == len(pair.links)
        assert [head for head, label in zip(pair.heads, pair.labels, strict=True) if label == "ROOT"] == [0]
        for word in range(1, len(pair.words) + 1):  # every word leads to the root
            steps = 0
            while word:
                word, steps = pair.heads[word - 1], steps + 1
            assert steps <= len(pair.words)
    assert {label for pair in PAIRS for label in pair.labels} == {
        "ROOT",
        "conj",
        "nsubj",
        "dobj",
        "det",
        "amod",
        "advmod",
    }
    assert len({len(pair.words) for pair in PAIRS}) > 7


def test_the_model_is_the_one_that_the_table_describes(model):
    assert {site.name: site.heads for site in find_sites(model)} == SITES
    assert sum(len(heads) for heads in HEADS.values()) == true_heads(*HEADS).count() == sum(SITES.values())


def test_the_model_translates_every_token_and_the_loss_still_has_a_gradient(model):
    assert accuracy(model) == 1
    for batch in planted_batches(PAIRS):
        with torch.no_grad():
            p = (
                model(batch.source, batch.target_in)
                .softmax(2)
                .gather(2, batch.target_out[:, :, None])[batch.target_out != PAD]
            )
        assert (p > 0.5).all()
        assert (p < 0.95).all()


@pytest.mark.parametrize(
    ("role", "site", "head"), [(role, site, head) for role in HEADS for site, head in HEADS[role]]
)
def test_the_translation_needs_every_head_but_noise_and_decoder_self_attention(model, role, site, head):
    bank = attach(model, gate="mask")
    try:
        bank.assign(
            {
                each: torch.tensor([float((each.name, h) != (site, head)) for h in range(each.heads)])
                for each in bank.sites
            }
        )
        needed = role != "noise" and "dec-self" not in site
        assert (accuracy(model) < 0.95) if needed else (accuracy(model) == 1)
    finally:
        detach(model)


def test_every_head_attends_as_planted(weights):
    """All weights of all heads against what the docstring of planted.py says."""
    for pair, seen in zip(PAIRS[:31], weights, strict=False):
        n = len(pair.words)
        subject = {verb - 1: i for i, verb in enumerate(pair.heads) if pair.labels[i] == "nsubj"}
        least = min(COUNTS[token] for token in pair.source)
        rarest = [i for i, token in enumerate(pair.source) if COUNTS[token] == least]
        for role, heads in HEADS.items():
            for site, head in heads:
                expected = torch.zeros(seen[site].shape[1:])  # (L, S)
                for i in range(len(expected)):
                    keys = list(range(i + 1)) if "dec-self" in site else list(range(n + 1))
                    if role == "previous" and i > 0:
                        keys = [i - 1]
                    elif role == "next" and i < n:
                        keys = [i + 1]
                    elif role == "subject" and i in subject:
                        keys = [subject[i]]
                    elif role == "rare":
                        keys = rarest
                    elif role == "aligned":
                        keys = [i // 2]
                    expected[i, keys] = 1 / len(keys)
                torch.testing.assert_close(seen[site][head], expected, rtol=0, atol=1e-6)


def test_positions_finds_the_previous_and_the_next_token_heads_and_no_other(model):
    best = observed(model, Positions()).best()
    assert best.share.map(lambda row: row >= THRESHOLD) == true_heads("previous", "next")
    assert (best.share.flat()[true_heads("previous", "next").flat()] == 1).all()
    for role, kind, offset in (
        ("previous", "enc-self", -1),
        ("previous", "dec-self", -1),
        ("next", "enc-self", 1),
    ):
        site, head = of(role, kind)
        assert best.offset[site][head] == offset
    all_tokens = observed(model, Positions(edges="all")).best().share
    for role in ("previous", "next"):
        site, head = of(role, "enc-self")
        assert float(all_tokens[site][head]) == pytest.approx(
            1 - len(PAIRS) / WORDS
        )  # but for one token of each sentence


def test_confidence_is_what_was_planted(model):
    confidence, with_end = (observed(model, Confidence(exclude)).head_map() for exclude in ("both", "none"))
    uniform = sum(
        len(pair.words) / (len(pair.words) + 1) for pair in PAIRS
    )  # 1 / (n + 1) for each of n words
    verbs = sum(label in ("ROOT", "conj") for pair in PAIRS for label in pair.labels)
    one_key = sum(1 / (len(pair.words) + 1) for pair in PAIRS)
    other_than_verbs = sum(
        sum(label not in ("ROOT", "conj") for label in pair.labels) / (len(pair.words) + 1) for pair in PAIRS
    )
    rarest = sum(
        len(pair.words) / pair.source.count(min(pair.source, key=lambda token: COUNTS[token]))
        for pair in PAIRS
    )
    expected = {
        "noise": uniform,
        "previous": WORDS - len(PAIRS) + one_key,
        "next": WORDS - len(PAIRS),  # the last word looks at the end of sentence, which is no token
        "subject": verbs + other_than_verbs,
        "rare": rarest,
    }
    for role, total in expected.items():
        site, head = of(role, "enc-self")
        assert float(confidence[site][head]) == pytest.approx(total / WORDS)
    site, head = of("next", "enc-self")
    assert float(with_end[site][head]) == pytest.approx((WORDS + one_key) / (WORDS + len(PAIRS)))
    site, head = of("aligned", "cross")
    assert float(confidence[site][head]) == pytest.approx(1)


@pytest.mark.parametrize("rank", [1, 7, 13])
def test_rare_words_finds_the_rare_word_head_and_no_other(model, rank):
    rare = observed(model, RareWords(COUNTS, rank))
    assert rare.two_rarest().map(lambda row: row >= RARE_SHARE) == true_heads("rare").select(["enc-self"])
    site, head = of("rare", "enc-self")
    assert rare.rarest()[site][head] == rare.two_rarest()[site][head] == 1
    assert 0.05 < rare.chance()[0] < rare.chance()[1] < 0.4
    assert rare.sentences == sum(
        max(token - 4 for token in pair.source) >= rank for pair in PAIRS
    )  # words are numbered by frequency


def test_alignment_finds_the_aligned_head_and_no_other(model):
    alignment = observed(model, Alignment([pair.links for pair in PAIRS]))
    site, head = of("aligned", "cross")
    assert alignment.agreement()[site][head] == 1
    assert alignment.agreement().map(lambda row: row >= alignment.baseline().share + MARGIN) == true_heads(
        "aligned"
    ).select(["cross"])
    assert alignment.tokens == 2 * WORDS
    offsets = Counter(-(t // 2) - t % 2 for pair in PAIRS for t in range(len(pair.target)))
    assert alignment.baseline().offset == -1  # target tokens 1 and 2 of every sentence
    assert alignment.baseline().share == pytest.approx(offsets[-1] / (2 * WORDS))


def test_a_query_that_is_judged_by_the_token_it_reads_is_one_step_late(model):
    late = observed(model, Alignment([pair.links for pair in PAIRS], token="read"))
    site, head = of("aligned", "cross")
    # half of the steps look at the word of the step before; after the last word at the end of sentence, where
    # nothing is left to look at
    assert float(late.agreement()[site][head]) == pytest.approx(0.5)


def test_entropy_is_zero_for_the_aligned_head_and_one_of_one_for_noise(model):
    entropy = observed(model, Entropy())
    site, head = of("aligned", "cross")
    assert float(entropy.nats()[site][head]) == pytest.approx(0, abs=1e-5)
    for site, head in HEADS["noise"]:
        assert float(entropy.relative()[site][head]) == pytest.approx(1, abs=1e-5)


def test_only_the_subject_head_is_syntactic_and_only_from_verb_to_subject(weights):
    """By hand, so that the syntactic analysis has something to agree with: accuracy against the best offset
    on the same tokens."""
    found = set()
    for label in ("nsubj", "dobj", "amod", "advmod"):
        for from_head in (True, False):
            links = [  # (pair, query, key)
                (number, *((head - 1, i) if from_head else (i, head - 1)))
                for number, pair in enumerate(PAIRS)
                for i, (head, own) in enumerate(zip(pair.heads, pair.labels, strict=True))
                if own == label
            ]
            baseline = Counter(key - query for _, query, key in links).most_common(1)[0][1] / len(links)
            hits = defaultdict(int)
            for number, query, key in links:
                words = len(PAIRS[number].words)
                for site in ("encoder.0.enc-self", "encoder.1.enc-self"):
                    for head, best in enumerate(weights[number][site][:, query, :words].argmax(1).tolist()):
                        hits[site, head] += best == key
            found |= {
                (label, from_head, *head)
                for head, count in hits.items()
                if count / len(links) >= baseline + 0.1
            }
            if (label, from_head) == ("nsubj", True):
                assert hits[of("subject", "enc-self")] == len(links)
                assert baseline < 0.5
    assert found == {("nsubj", True, *of("subject", "enc-self"))}


@pytest.mark.parametrize("absolute", ["sentence", "token", "batch"])
def test_importance_ranks_the_needed_heads_above_noise(model, absolute):
    scores = importance(model, planted_batches(PAIRS), absolute=absolute)
    noise = true_heads("noise")
    for kind in ("enc-self", "cross"):
        needed = ~noise.select([kind]).flat()
        row = scores.select([kind]).flat()
        assert row[needed].min() > 20 * row[~needed].max()
        assert scores.select([kind]).lowest(int((~needed).sum())) == noise.select([kind])
    assert (scores.select(["dec-self"]).flat() == 0).all()  # it writes nothing


def test_true_heads_are_a_map_of_the_whole_model():
    assert true_heads() == HeadMap(
        {HeadSite.parse(name, heads): [False] * heads for name, heads in SITES.items()}
    )
    assert true_heads("rare", "aligned").to_json() == {
        "encoder.0.enc-self": [False, True, False],
        "encoder.1.enc-self": [False, False, False],
        "decoder.0.dec-self": [False, False],
        "decoder.0.cross": [True, False],
    }
