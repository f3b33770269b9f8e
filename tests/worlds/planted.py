"""A Transformer built by hand, whose heads do known things, a language that needs them, and its trees and
alignments.

    encoder.0.enc-self   0 previous   1 rare      2 noise
    encoder.1.enc-self   0 noise      1 next      2 subject
    decoder.0.dec-self   0 previous   1 noise
    decoder.0.cross      0 aligned    1 noise

previous, next: the token before or after, whole; where there is none, all tokens alike. rare: the least
frequent token of the sentence. subject: from a verb its subject, found by class (a verb of class c takes a
noun of class c, and no other noun of the sentence is of class c), from any other token all tokens alike.
noise: all tokens alike, always. aligned: target tokens 2 i and 2 i + 1 look at source token i. "All tokens
alike" has the end of sentence among them; the first of equal weights is the largest, so such a query counts
as the first token.

The target has two tokens for every source token i, written ROLE:word. The first is RARE:the rarest word if i
is a determiner, SUBJ:its subject if i is a verb, else PREV:the word before; the second is NEXT:the word
after. So every encoder head that is not noise is needed, as is the aligned head. Decoder self-attention
writes nothing. `planted_model()` gives the right token the largest logit everywhere, with a probability of
about 0.7, so that the loss still has a gradient.

How it is built: benchmarks/planted_heads.py. Feed-forward layers write nothing. Attention weights are one-hot
or uniform to 1e-6.

    from tests.worlds.planted import HEADS, planted_batches, planted_model, planted_pairs, true_heads
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.planted_heads import Stream
from headgates.configs.settings import ModelConfig
from headgates.data.batch import Batch, collate
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite
from headgates.models.transformer import Transformer

EOS = SpecialTokens().end

# the most frequent first, "word type" or "word type class"
LEXICON = """the det, a det, bites verb 0, sees verb 1, crushes verb 2, often adv, cat noun 0, woman noun 1, stone noun 2, chases verb 0,
    reads verb 1, hits verb 2, dog noun 0, man noun 1, cup noun 2, old adj, never adv, big adj, red adj"""
ENTRIES = [entry.split() for entry in LEXICON.split(",")]
WORDS = [entry[0] for entry in ENTRIES]
TYPE = {entry[0]: entry[1] for entry in ENTRIES}
CLASS = {entry[0]: int(entry[2]) for entry in ENTRIES if len(entry) > 2}
SPECIALS = 4
ID = {word: SPECIALS + i for i, word in enumerate(WORDS)}
SOURCE_VOCAB = SPECIALS + len(WORDS)  # 23
# of each source id in an imagined training text; all differ
COUNTS = [0] * SPECIALS + [101 - 5 * i for i in range(len(WORDS))]
LONGEST = 18  # source words

ROLES = ("PREV", "NEXT", "SUBJ", "RARE")
TARGET_VOCAB = SPECIALS + len(ROLES) * SOURCE_VOCAB

HEADS: dict[str, list[tuple[str, int]]] = {  # what a head does -> its site and number, all heads of the model
    "previous": [("encoder.0.enc-self", 0), ("decoder.0.dec-self", 0)],
    "next": [("encoder.1.enc-self", 1)],
    "subject": [("encoder.1.enc-self", 2)],
    "rare": [("encoder.0.enc-self", 1)],
    "aligned": [("decoder.0.cross", 0)],
}
SITES = {"encoder.0.enc-self": 3, "encoder.1.enc-self": 3, "decoder.0.dec-self": 2, "decoder.0.cross": 2}
PLACES = [(site, head) for site, heads in SITES.items() for head in range(heads)]
BUSY = {place for places in HEADS.values() for place in places}
HEADS["noise"] = [place for place in PLACES if place not in BUSY]


class PlantedPair(NamedTuple):
    """A sentence and its translation; every word is one piece."""

    words: list[str]
    heads: list[int]  # of each word, 1-based, 0 for the root
    labels: list[str]  # ROOT, conj, nsubj, dobj, det, amod, advmod
    source: list[int]  # ids without the end of sentence
    target: list[int]
    links: list[tuple[int, int]]  # (source, target), 0-based


def planted_pairs(count: int = 101, seed: int = 0) -> list[PlantedPair]:
    """Sentences of one or two clauses: det (adj) noun (adv) (adv) verb det (adj) noun."""
    rng = Random(seed)
    return [draw(rng) for _ in range(count)]


def draw(rng: Random) -> PlantedPair:
    # classes of the first subject, of the second, and of objects: none is a subject's
    classes = rng.sample(range(3), 3)
    words: list[str] = []
    heads: list[int] = []
    labels: list[str] = []

    def add(kind: str, label: str, number: int | None = None) -> int:
        """The number, from 1, of a new word of this type and class; its head is set later."""
        words.append(rng.choice([word for word in WORDS if TYPE[word] == kind and CLASS.get(word) == number]))
        labels.append(label)
        heads.append(0)
        return len(words)

    def attach(first: int, head: int) -> None:
        """Make the words from `first` on that have no head dependents of `head`."""
        for i in range(first, len(words) + 1):
            heads[i - 1] = heads[i - 1] or (head if i != head else 0)

    def phrase(number: int, label: str) -> None:
        first = add("det", "det")
        if rng.random() < 0.5:
            add("adj", "amod")
        attach(first, add("noun", label, number))

    root = 0
    for number in classes[: rng.choice([1, 2])]:
        first = len(words) + 1
        phrase(number, "nsubj")
        for _ in range(rng.choice([0, 1, 2])):
            add("adv", "advmod")
        verb = add("verb", "conj" if root else "ROOT", number)
        phrase(classes[2], "dobj")
        heads[verb - 1], root = root, root or verb
        attach(first, verb)
    heads[root - 1] = 0
    source = [ID[word] for word in words]
    target = translate(words, heads, labels, source)
    return PlantedPair(words, heads, labels, source, target, [(t // 2, t) for t in range(len(target))])


def translate(
    words: Sequence[str], heads: Sequence[int], labels: Sequence[str], source: list[int]
) -> list[int]:
    """The target ids, without the end of sentence."""
    # the verb's number -> its subject
    subject = {heads[i]: source[i] for i, label in enumerate(labels) if label == "nsubj"}
    rarest = min(source, key=lambda token: COUNTS[token])
    target = []
    for i, word in enumerate(words):
        if TYPE[word] == "det":
            target.append(target_id("RARE", rarest))
        elif TYPE[word] == "verb":
            target.append(target_id("SUBJ", subject[i + 1]))
        else:
            target.append(target_id("PREV", source[i - 1]))
        target.append(target_id("NEXT", [*source, EOS][i + 1]))
    return target


def target_id(role: str, source_id: int) -> int:
    return SPECIALS + ROLES.index(role) * SOURCE_VOCAB + source_id


def planted_batches(pairs: Sequence[PlantedPair], size: int = 13) -> list[Batch]:
    """The pairs in their order, `size` at a time; `index` is their number."""
    some = [range(start, min(start + size, len(pairs))) for start in range(0, len(pairs), size)]
    return [collate([(pairs[i].source, pairs[i].target) for i in each], list(each), 1) for each in some]


def true_heads(*roles: str) -> HeadMap:
    """True at the heads that do one of these things."""
    true = [place for role in roles for place in HEADS[role]]
    return HeadMap(
        {
            HeadSite.parse(name, heads): torch.tensor([(name, head) in true for head in range(heads)])
            for name, heads in SITES.items()
        }
    )


POSITIONS = 2 * LONGEST + 1
CARRIED = ("token", "prev", "next", "subj", "rare")  # what the aligned head hands over
PARTS = {"token": SOURCE_VOCAB, "position": POSITIONS}
PARTS |= dict.fromkeys((*CARRIED[1:], "noise"), SOURCE_VOCAB) | {"ballast": 2}
WIDTH = sum(PARTS[part] for part in CARRIED)  # of a head, 115
D_MODEL = 3 * WIDTH  # more than the parts need; the rest stays 0
# ballast: beside it the ones hardly change a vector's norm
STREAM = Stream(PARTS, D_MODEL, WIDTH, ballast=10.0, ones=4)
FIRST, at, set_rows, write = STREAM.first, STREAM.at, STREAM.set_rows, STREAM.write
SHARP = 400.0  # large enough that a softmax is one-hot
GAIN = 4.0  # nats by which the right token beats the next ones


def planted_model() -> Transformer:
    """The model, in evaluation mode; the same every time."""
    config = ModelConfig(
        d_model=D_MODEL, ffn=1, heads=3, encoder_layers=2, decoder_layers=1, norm="pre", positions="learned", max_positions=POSITIONS,
        embeddings="separate", dropout=0.0,
    )  # fmt: skip
    fewer = {name: heads for name, heads in SITES.items() if heads != 3}
    model = Transformer(config, SOURCE_VOCAB, TARGET_VOCAB, fewer).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        embed(model)
        (first, second), last = model.encoder.layers, model.decoder.layers[0]
        for attention, head in ((first.self_attention, 0), (last.self_attention, 0)):
            STREAM.look_at(attention, head, [i - 1 for i in range(POSITIONS)], SHARP)
        STREAM.look_at(second.self_attention, 1, [i + 1 for i in range(POSITIONS)], SHARP)
        STREAM.look_at(last.cross_attention, 0, [t // 2 for t in range(POSITIONS)], SHARP)
        look_at_rare(first.self_attention, 1)
        look_at_subject(second.self_attention, 2)
        for head, part in enumerate(("prev", "rare", "noise")):
            write(first.self_attention, head, {"token": part})
        for head, part in enumerate(("noise", "next", "subj")):
            write(second.self_attention, head, {"token": part})
        write(last.cross_attention, 0, {part: part for part in CARRIED})
        write(last.cross_attention, 1, {"token": "noise"})
        write_logits(model.output)
    return model


def embed(model: Transformer) -> None:
    STREAM.embed(model.source_embedding, torch.arange(SOURCE_VOCAB), "token")
    STREAM.embed(model.target_embedding, torch.full((TARGET_VOCAB,), -1), "token")
    for positions in (model.source_positions, model.target_positions):
        positions.weight[:, at("position")] = torch.eye(POSITIONS)


def look_at_rare(attention: nn.Module, head: int) -> None:
    key = torch.zeros(1, D_MODEL)
    ranks = (
        torch.tensor(COUNTS).argsort(descending=True).argsort()
    )  # 0 for the most frequent word; specials come last
    key[0, at("token")] = ranks.where(ranks < len(WORDS), -1.0)
    attention.q_proj.bias[head * WIDTH] = SHARP / 2
    set_rows(attention.k_proj, head * WIDTH, key)


def look_at_subject(attention: nn.Module, head: int) -> None:
    query, key = torch.zeros(3, D_MODEL), torch.zeros(3, D_MODEL)
    for word, number in CLASS.items():
        rows = query if TYPE[word] == "verb" else key
        rows[number, FIRST["token"] + ID[word]] = SHARP if TYPE[word] == "verb" else 1.0
    set_rows(attention.q_proj, head * WIDTH, query)
    set_rows(attention.k_proj, head * WIDTH, key)


def write_logits(output: nn.Linear) -> None:
    """GAIN for ROLE:word if the role's part holds the word, GAIN more if it is this token's role, GAIN again
    if it is this step's."""
    rows = torch.zeros(TARGET_VOCAB, D_MODEL)
    for r, role in enumerate(ROLES):
        own = slice(SPECIALS + r * SOURCE_VOCAB, SPECIALS + (r + 1) * SOURCE_VOCAB)
        rows[own, at(role.lower())] = torch.eye(SOURCE_VOCAB)
        for word in WORDS:
            if {"det": "RARE", "verb": "SUBJ"}.get(TYPE[word], "PREV") == role:
                rows[own, FIRST["token"] + ID[word]] = 1.0
        if role == "NEXT":
            rows[own, FIRST["position"] + 1 : FIRST["position"] + POSITIONS : 2] = 2.0
    rows[EOS, FIRST["token"] + EOS] = 2.0
    set_rows(output, 0, rows * GAIN / STREAM.factor)
