"""A Transformer whose task needs exactly four of its 24 heads, and a language that it is right about.

A source is three to five words. Each gives three target tokens, written ROLE:word:

    SAME:word        the word itself
    BEFORE:word      the word before it; of a rare word AFTER:word, the word after
    ECHO:word        the second of the three tokens that the source word before it gave

    relation    its head, at a site and number that the seed draws
    same        cross-attention to the source word of each step; it hands over what the encoder found
    before      encoder self-attention to the word before
    after       encoder self-attention to the word after: needed at few tokens
    echo        decoder self-attention four steps back

Without the head of a relation its tokens have no word, so they are wrong; with the four the largest logit is
the right token's everywhere. The other 20 heads are decoys. Those of a kind that is not planted write nothing
but noise.

    useless    looks at one word sharply and writes much of it where nothing reads, or writes there the
               mean of all words
    partial    does what the head of `same`, `before` or `echo` does, for half of the words: it raises
               the logits of right tokens, but is no substitute
    harmful    writes a wrong word beside what `before` or `same` writes, too weakly to make a token wrong
    backup     a second head of `before`, and one of `echo`: either is enough, one of the two is needed

With the first three one set of four heads solves the task; with `backup` one of four sets is enough.
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.planted_heads import Stream
from headgates.configs.settings import ModelConfig
from headgates.data.batch import Batch, collate
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, attach, detach, find_sites
from headgates.models.transformer import Transformer

RELATIONS = ("same", "before", "after", "echo")
BACKED_UP = ("before", "echo")
DECOYS = ("useless", "partial", "harmful", "backup")
PLANTED_SPECIALS = SpecialTokens()
FIRST_WORD, WORLD_WORDS, RARE = 4, 11, 2  # the last two of the words are rare
VOCAB = FIRST_WORD + WORLD_WORDS
FEWEST_WORDS, MOST_WORDS, STEPS = 3, 5, 3
MOST_POSITIONS = STEPS * MOST_WORDS + 1
HANDED_OVER = ("token", "before", "after")  # by the cross-attention head
STREAM_PARTS = {"token": VOCAB, "position": MOST_POSITIONS, "ballast": 2}
STREAM_PARTS |= dict.fromkeys(("before", "after", "said", "echo", "unread"), VOCAB)
HEADS, WORLD_LAYERS, HEAD_WIDTH = 4, 2, len(HANDED_OVER) * VOCAB
STREAM = Stream(STREAM_PARTS, HEADS * HEAD_WIDTH, HEAD_WIDTH, ballast=30.0, ones=6)
SHARP = 60 * HEAD_WIDTH**0.5 / STREAM.factor**2  # a key's logit is 60 above the others'
GAIN = 4.0  # nats by which the right word beats the others
OF_STEP, OF_WORD = 150.0, 40.0  # times GAIN, by which a role of the step, or of the word, beats the others
LOUD, WEAK = 3.0, 0.7
NOISE = 1e-3  # standard deviation, of the weights of values and outputs
WORLD_SENTENCES = 128, 64  # read by selectors; on which the task is solved or not

PlantedPlace = tuple[str, int, int]  # kind, layer, head


@dataclass(frozen=True, eq=False)
class PlantedWorld:
    """carriers: the heads that each relation can be had from, one of which is needed."""

    model: Transformer
    batches: list[Batch]
    held_out: list[Batch]
    carriers: dict[str, HeadMap]  # bool
    decoys: dict[str, HeadMap]  # bool, of each kind that is planted

    @property
    def needed(self) -> int:
        """The number of heads that the task needs, k."""
        return len(self.carriers)

    @torch.no_grad()
    def solved(self, closed: HeadMap) -> bool:
        """Whether every held-out token is right with these heads closed (True: closed)."""
        attach(self.model, gate="mask", xi=(~closed).map(lambda row: row.double()))
        try:
            for batch in self.held_out:
                real = batch.target_out != PLANTED_SPECIALS.padding
                found = self.model(batch.source, batch.target_in).argmax(-1)
                if (found != batch.target_out)[real].any():
                    return False
        finally:
            detach(self.model)
        return True

    def found(self, closed: HeadMap) -> bool:
        """Whether one head of each relation stays open, and no other head."""
        left = (~closed).flat()
        one_each = all(int((left & heads.flat()).sum()) == 1 for heads in self.carriers.values())
        return one_each and int(left.sum()) == self.needed


def planted_world(seed: int, decoys: Collection[str] = DECOYS) -> PlantedWorld:
    """The model, in evaluation mode, its text and the truth. Equal seeds give equal worlds."""
    rng = Random(seed)
    model = Transformer(PLANTED_CONFIG, VOCAB, FIRST_WORD + len(RELATIONS) * VOCAB).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
            if name.endswith(("v_proj.weight", "out_proj.weight")):
                parameter.copy_(NOISE * torch.randn(parameter.shape, generator=generator))
        embed(model)
        write_logits(model)
        plan = planned_places(rng)
        half = torch.zeros(VOCAB, dtype=torch.bool)
        half[rng.sample(range(FIRST_WORD, VOCAB), WORLD_WORDS // 2)] = True
        for role, places in plan.items():
            for place in places if role.split()[0] in {*RELATIONS, *decoys} else ():
                plant(model, place, role, half)
    text = [planted_sentence(rng) for _ in range(sum(WORLD_SENTENCES))]
    read, held_out = text[: WORLD_SENTENCES[0]], text[WORLD_SENTENCES[0] :]
    heads = {place for places in plan.values() for place in places}

    def head_map(*roles: str) -> HeadMap:
        chosen = {place for role in roles for place in plan[role]}
        assert chosen <= heads
        return HeadMap(
            {
                site: torch.tensor([(site.kind, site.layer, head) in chosen for head in range(site.heads)])
                for site in find_sites(model)
            }
        )

    carriers = {relation: head_map(relation) for relation in RELATIONS}
    for relation in BACKED_UP if "backup" in decoys else ():
        carriers[relation] = head_map(relation, f"backup {relation}")
    kinds = {
        decoy: head_map(*(role for role in plan if role.split()[0] == decoy))
        for decoy in DECOYS
        if decoy in decoys
    }
    return PlantedWorld(model, batched(read), batched(held_out), carriers, kinds)


PLANTED_CONFIG = ModelConfig(
    d_model=STREAM.d_model,
    ffn=1,
    heads=HEADS,
    encoder_layers=WORLD_LAYERS,
    decoder_layers=WORLD_LAYERS,
    norm="pre",
    positions="learned",
    max_positions=MOST_POSITIONS,
    embeddings="separate",
    dropout=0.0,
)
# kind -> what its eight heads do; the places are drawn
LOUD_ONE, DIFFUSE = "useless loud", "useless diffuse"
ROLES: dict[str, list[str]] = {
    "enc-self": [
        *("before", "after", "backup before", "partial before", "harmful before"),
        *(LOUD_ONE, DIFFUSE, "idle"),
    ],
    "dec-self": [
        *("echo", "backup echo", "partial echo"),
        *(LOUD_ONE, LOUD_ONE, DIFFUSE, DIFFUSE, "idle"),
    ],
    "cross": [
        *("same", "partial same", "harmful same"),
        *(LOUD_ONE, LOUD_ONE, DIFFUSE, DIFFUSE, "idle"),
    ],
}


def planned_places(rng: Random) -> dict[str, list[PlantedPlace]]:
    """What a head does -> its places."""
    plan: dict[str, list[PlantedPlace]] = {}
    for kind, roles in ROLES.items():
        places = [(kind, layer, head) for layer in range(WORLD_LAYERS) for head in range(HEADS)]
        for role, place in zip(roles, rng.sample(places, len(places)), strict=True):
            plan.setdefault(role, []).append(place)
    return plan


def plant(model: Transformer, place: PlantedPlace, role: str, half: Tensor) -> None:
    """Set the weights of a head that does this. half: the words that partial heads know."""
    kind, layer, head = place
    stack: Any = (model.encoder if kind == "enc-self" else model.decoder).layers[layer]
    attention = stack.cross_attention if kind == "cross" else stack.self_attention
    does, _, what = role.rpartition(" ")
    if what == "idle":
        return
    back = {"enc-self": -1, "dec-self": -STEPS, "cross": 0}[kind]  # dec-self reads the step before
    offset = 1 if what == "after" else back + 2 * (does == "harmful") - (what == "loud")
    if what != "diffuse":
        keys = [max(0, i // (STEPS if kind == "cross" else 1) + offset) for i in range(MOST_POSITIONS)]
        STREAM.look_at(attention, head, keys, SHARP)
    read = "said" if kind == "dec-self" else "token"
    if does == "useless":
        written = {read: "unread"}
    elif what == "same" and does != "harmful":
        written = {part: part for part in HANDED_OVER}
    else:
        written = {read: "token" if what == "same" else what}
    scale = LOUD if what == "loud" else WEAK if does == "harmful" else 1.0
    STREAM.write(attention, head, written, scale, half if does == "partial" else None)


def embed(model: Transformer) -> None:
    roles = torch.arange(FIRST_WORD + len(RELATIONS) * VOCAB)
    said = torch.where(roles < FIRST_WORD, roles, (roles - FIRST_WORD) % VOCAB)
    STREAM.embed(model.source_embedding, torch.arange(VOCAB), "token")
    STREAM.embed(model.target_embedding, said, "said")
    for positions in (model.source_positions, model.target_positions):
        positions.weight[:, STREAM.at("position")] = torch.eye(MOST_POSITIONS)


def write_logits(model: Transformer) -> None:
    """GAIN for ROLE:word if the role's part holds the word, and more for all tokens of this step's role."""
    rows = torch.zeros(FIRST_WORD + len(RELATIONS) * VOCAB, STREAM.d_model)
    token, position = STREAM.first["token"], STREAM.first["position"]
    for relation in RELATIONS:
        own = slice(target_id(relation, 0), target_id(relation, VOCAB))
        rows[own, STREAM.at("token" if relation == "same" else relation)] = torch.eye(VOCAB)
        step = {"same": 0, "echo": 2}.get(relation, 1)
        rows[own, position + step : position + MOST_POSITIONS : STEPS] = OF_STEP
    for relation, first, last in (("before", 0, VOCAB - RARE), ("after", VOCAB - RARE, VOCAB)):
        rows[target_id(relation, 0) : target_id(relation, VOCAB), token + first : token + last] = OF_WORD
    rows[PLANTED_SPECIALS.end, token + PLANTED_SPECIALS.end] = OF_STEP + OF_WORD
    STREAM.set_rows(model.output, 0, rows * GAIN / STREAM.factor)


def target_id(relation: str, word: int) -> int:
    return FIRST_WORD + RELATIONS.index(relation) * VOCAB + word


def planted_sentence(rng: Random) -> tuple[list[int], list[int]]:
    """Source and target ids."""
    source = [rng.randrange(FIRST_WORD, VOCAB) for _ in range(rng.randint(FEWEST_WORDS, MOST_WORDS))]
    target: list[int] = []
    second = PLANTED_SPECIALS.beginning  # the word of the second token before
    for i, word in enumerate(source):
        rare = word >= VOCAB - RARE
        relation, other = (
            ("after", [*source, PLANTED_SPECIALS.end][i + 1]) if rare else ("before", source[max(0, i - 1)])
        )
        target += [target_id("same", word), target_id(relation, other), target_id("echo", second)]
        second = other
    return source, target


def batched(text: list[tuple[list[int], list[int]]], size: int = 32) -> list[Batch]:
    return [
        collate(text[i : i + size], range(i, min(i + size, len(text))), 1) for i in range(0, len(text), size)
    ]
