"""A Transformer whose task needs exactly k of its 24 heads, 3 to 6, and a language that it is right about.

A source is three to five words. Each gives some target tokens, written ROLE:word, one after the other:

    SAME:word        the word itself
    BEFORE:word      the word before it; with four relations of a rare word AFTER:word, the word after
    ECHO:word        the second of the tokens that the source word before it gave
    EARLIER:word     with five relations, the word two before it
    RECALL:word      with six, the third of the tokens that the source word before it gave

    relation    its head, at a site and number that the seed draws
    same        cross-attention to the source word of each step; it hands over what the encoder found
    before      encoder self-attention to the word before
    echo        decoder self-attention to what was said a word of the source and a step ago
    after       encoder self-attention to the word after: needed at few tokens
    earlier     encoder self-attention to the word two before
    recall      decoder self-attention to what was said a word of the source and two steps ago

Without the head of a relation its tokens have no word, so they are wrong; with the k the largest logit is the
right token's everywhere. The other heads are decoys. Those of a kind that is not planted, and those of
relations that the task lacks, write nothing but noise.

    useless    looks at one word sharply and writes much of it where nothing reads, or writes there the
               mean of all words
    partial    does what the head of `same`, `before` or `echo` does, for half of the words: it raises
               the logits of right tokens, but is no substitute
    harmful    writes a wrong word beside what `before` or `same` writes, too weakly to make a token wrong
    backup     a second head of `before`, and one of `echo`: either is enough, one of the two is needed

With the first three one set of k heads solves the task; with `backup` one of four sets is enough.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
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

RELATIONS = ("same", "before", "echo", "after", "earlier", "recall")  # a task has the first few
LEAST_RELATIONS = 3
OF_ENCODER = ("before", "after", "earlier")
STEP = {"same": 0, "before": 1, "after": 1, "echo": 2, "earlier": 3, "recall": 4}  # of its tokens
BACKED_UP = ("before", "echo")
DECOYS = ("useless", "partial", "harmful", "backup")
PLANTED_SPECIALS = SpecialTokens()
FIRST_WORD, WORLD_WORDS = 4, 11
VOCAB = FIRST_WORD + WORLD_WORDS
FEWEST_WORDS, MOST_WORDS = 3, 5
HEADS, WORLD_LAYERS = 4, 2
GAIN = 4.0  # nats by which the right word beats the others
OF_STEP, OF_WORD = 150.0, 40.0  # times GAIN, by which a role of the step, or of the word, beats the others
LOUD, WEAK = 3.0, 0.7
NOISE = 1e-3  # standard deviation, of the weights of values and outputs
WORLD_SENTENCES = 128, 64  # read by selectors; on which the task is solved or not

PlantedPlace = tuple[str, int, int]  # kind, layer, head


@dataclass(frozen=True)
class PlantedTask:
    """A language of so many relations, and the residual vector of the model that speaks it."""

    count: int

    def __post_init__(self) -> None:
        if not LEAST_RELATIONS <= self.count <= len(RELATIONS):
            raise ValueError(f"expected {LEAST_RELATIONS} to {len(RELATIONS)} relations, got {self.count}")

    @property
    def relations(self) -> tuple[str, ...]:
        return RELATIONS[: self.count]

    @property
    def steps(self) -> int:
        """The number of target tokens for each word of the source."""
        return 1 + max(STEP[relation] for relation in self.relations)

    @property
    def positions(self) -> int:
        """Those of the longest target."""
        return self.steps * MOST_WORDS + 1

    @property
    def rare(self) -> int:
        """How many of the last words are rare, so that AFTER is asked of them in place of BEFORE."""
        return 2 if "after" in self.relations else 0

    @property
    def handed_over(self) -> list[str]:
        """The parts that the head of `same` hands over from the encoder."""
        return ["token", *(relation for relation in self.relations if relation in OF_ENCODER)]

    @cached_property
    def stream(self) -> Stream:
        written = (*(relation for relation in self.relations if relation != "same"), "said", "unread")
        parts = {"token": VOCAB, "position": self.positions, "ballast": 2, **dict.fromkeys(written, VOCAB)}
        width = len(self.handed_over) * VOCAB
        return Stream(parts, HEADS * width, width, ballast=30.0, ones=6)

    @property
    def target_tokens(self) -> int:
        return FIRST_WORD + self.count * VOCAB

    def target_id(self, relation: str, word: int) -> int:
        return FIRST_WORD + self.relations.index(relation) * VOCAB + word

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            d_model=self.stream.d_model,
            ffn=1,
            heads=HEADS,
            encoder_layers=WORLD_LAYERS,
            decoder_layers=WORLD_LAYERS,
            norm="pre",
            positions="learned",
            max_positions=self.positions,
            embeddings="separate",
            dropout=0.0,
        )

    def sentence(self, rng: Random) -> tuple[list[int], list[int]]:
        """Source and target ids."""
        source = [rng.randrange(FIRST_WORD, VOCAB) for _ in range(rng.randint(FEWEST_WORDS, MOST_WORDS))]
        target: list[int] = []
        second = third = PLANTED_SPECIALS.beginning  # the words of these tokens of the word before
        for i, word in enumerate(source):
            words = {"same": word, "before": source[max(0, i - 1)], "echo": second}
            if word >= VOCAB - self.rare:
                words["after"] = [*source, PLANTED_SPECIALS.end][i + 1]
                del words["before"]
            words |= {"earlier": source[max(0, i - 2)], "recall": third}
            said = sorted(words.keys() & {*self.relations}, key=STEP.__getitem__)
            target += [self.target_id(relation, words[relation]) for relation in said]
            second, third = words[said[1]], words["echo"]
        return source, target


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


def planted_world(seed: int, decoys: Collection[str] = DECOYS, relations: int = 4) -> PlantedWorld:
    """The model, in evaluation mode, its text and the truth. Equal seeds give equal worlds. Raises ValueError
    unless there are 3 to 6 relations."""
    rng, task = Random(seed), PlantedTask(relations)
    model = Transformer(task.config, VOCAB, task.target_tokens).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
            if name.endswith(("v_proj.weight", "out_proj.weight")):
                parameter.copy_(NOISE * torch.randn(parameter.shape, generator=generator))
        embed(task, model)
        write_logits(task, model)
        plan = planned_places(rng)
        half = torch.zeros(VOCAB, dtype=torch.bool)
        half[rng.sample(range(FIRST_WORD, VOCAB), WORLD_WORDS // 2)] = True
        for role, places in plan.items():
            for place in places if role.split()[0] in {*task.relations, *decoys} else ():
                plant(task, model, place, role, half)
    text = [task.sentence(rng) for _ in range(sum(WORLD_SENTENCES))]
    read, held_out = text[: WORLD_SENTENCES[0]], text[WORLD_SENTENCES[0] :]

    def head_map(*roles: str) -> HeadMap:
        chosen = {place for role in roles for place in plan[role]}
        return HeadMap(
            {
                site: torch.tensor([(site.kind, site.layer, head) in chosen for head in range(site.heads)])
                for site in find_sites(model)
            }
        )

    carriers = {relation: head_map(relation) for relation in task.relations}
    for relation in BACKED_UP if "backup" in decoys else ():
        carriers[relation] = head_map(relation, f"backup {relation}")
    kinds = {
        decoy: head_map(*(role for role in plan if role.split()[0] == decoy))
        for decoy in DECOYS
        if decoy in decoys
    }
    return PlantedWorld(model, batched(read), batched(held_out), carriers, kinds)


# kind -> what its eight heads do; the places are drawn
LOUD_ONE, DIFFUSE = "useless loud", "useless diffuse"
ROLES: dict[str, list[str]] = {
    "enc-self": [
        *("before", "after", "backup before", "partial before", "harmful before"),
        *(LOUD_ONE, DIFFUSE, "earlier"),
    ],
    "dec-self": [
        *("echo", "backup echo", "partial echo"),
        *(LOUD_ONE, LOUD_ONE, DIFFUSE, DIFFUSE, "recall"),
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


def plant(task: PlantedTask, model: Transformer, place: PlantedPlace, role: str, half: Tensor) -> None:
    """Set the weights of a head that does this. half: the words that partial heads know."""
    stream, steps = task.stream, task.steps
    kind, layer, head = place
    stack: Any = (model.encoder if kind == "enc-self" else model.decoder).layers[layer]
    attention = stack.cross_attention if kind == "cross" else stack.self_attention
    does, _, what = role.rpartition(" ")
    if what == "idle":
        return
    back = {"enc-self": -1, "dec-self": -steps, "cross": 0}[kind]  # dec-self reads the step before
    offset = {"after": 1, "earlier": -2, "recall": -steps - 1}.get(what, back)
    offset += 2 * (does == "harmful") - (what == "loud")
    if what != "diffuse":
        keys = [max(0, i // (steps if kind == "cross" else 1) + offset) for i in range(task.positions)]
        # a key's logit is 60 above the others'
        stream.look_at(attention, head, keys, 60 * stream.width**0.5 / stream.factor**2)
    read = "said" if kind == "dec-self" else "token"
    if does == "useless":
        written = {read: "unread"}
    elif what == "same" and does != "harmful":
        written = {part: part for part in task.handed_over}
    else:
        written = {read: "token" if what == "same" else what}
    scale = LOUD if what == "loud" else WEAK if does == "harmful" else 1.0
    stream.write(attention, head, written, scale, half if does == "partial" else None)


def embed(task: PlantedTask, model: Transformer) -> None:
    roles, stream = torch.arange(task.target_tokens), task.stream
    said = torch.where(roles < FIRST_WORD, roles, (roles - FIRST_WORD) % VOCAB)
    stream.embed(model.source_embedding, torch.arange(VOCAB), "token")
    stream.embed(model.target_embedding, said, "said")
    for positions in (model.source_positions, model.target_positions):
        positions.weight[:, stream.at("position")] = torch.eye(task.positions)


def write_logits(task: PlantedTask, model: Transformer) -> None:
    """GAIN for ROLE:word if the role's part holds the word, and more for all tokens of this step's role."""
    stream, common = task.stream, VOCAB - task.rare
    rows = torch.zeros(task.target_tokens, stream.d_model)
    token, position = stream.first["token"], stream.first["position"]
    for relation in task.relations:
        own = slice(task.target_id(relation, 0), task.target_id(relation, VOCAB))
        rows[own, stream.at("token" if relation == "same" else relation)] = torch.eye(VOCAB)
        rows[own, position + STEP[relation] : position + task.positions : task.steps] = OF_STEP
        if relation in ("before", "after"):
            asked = (0, common) if relation == "before" else (common, VOCAB)
            rows[own, token + asked[0] : token + asked[1]] = OF_WORD
    rows[PLANTED_SPECIALS.end, token + PLANTED_SPECIALS.end] = OF_STEP + OF_WORD
    stream.set_rows(model.output, 0, rows * GAIN / stream.factor)


def batched(text: list[tuple[list[int], list[int]]]) -> list[Batch]:
    numbered = range(len(text))
    return [collate(text[i : i + 32], numbered[i : i + 32], 1) for i in numbered[::32]]
