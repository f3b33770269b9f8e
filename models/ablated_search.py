"""Greedy translations of a model under many masks, computed as one job by checking drafts.

The draft is the unpruned model's translation. One teacher-forced pass under a mask gives the masked model's
choice at every position of the draft. If all agree with it, the draft is the masked translation; otherwise
decoding continues from the first that differs. The result is exactly that of a greedy search under the mask.
A position whose two best logits lie within MARGIN counts as different, because rounding may differ there
between a pass over the whole draft and one step at a time.

A row is one sentence under one mask. Masks whose first closed head is in the same layer go through the model
together and reuse the unpruned model's states before that layer: the encoder's output serves the ablations of
all decoder heads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headgates.data.batch import pad
from headgates.gates import GateBank, HeadMap, HeadSite, attach, detach
from headgates.models.decode_on import DecodingStart, decode_on
from headgates.models.draft_check import Drafts, farthest_distances
from headgates.models.search import greedy_search
from headgates.models.translator import Translator

BATCH_TOKENS = {
    "cpu": 700,
    "cuda": 4_000,
}  # source and target tokens, the longer side, of the sentences that are checked together
ROW_TOKENS = {
    "cpu": 4_000,
    "cuda": 200_000,
}  # target tokens of the rows that go through the model at once: on a CPU they fit in its cache
WAITING = 2_000  # rejected rows that are collected before they are decoded together


@dataclass(frozen=True)
class Ablated:
    """The translations of a model under many masks."""

    drafts: list[str]  # the unpruned model's translation of each line
    changed: list[
        dict[int, str]
    ]  # for every ablation: line number -> translation, where it differs from the draft
    decoded: int  # rows whose draft was rejected

    def hypotheses(self, ablation: int) -> list[str]:
        """The translations of all lines under one ablation."""
        return [self.changed[ablation].get(i, draft) for i, draft in enumerate(self.drafts)]

    @property
    def changed_share(self) -> float:
        """The share of lines that differ from the draft, averaged over the ablations."""
        return sum(map(len, self.changed)) / max(1, len(self.changed) * len(self.drafts))


def ablated_translations(
    translator: Translator, lines: Sequence[str], ablations: Sequence[HeadMap], *, beam: int = 1
) -> Ablated:
    """Translate the lines under each mask (True: closed; sites that a mask lacks stay open).

    beam 1: greedy search by drafts, exact in fp32. Wider beams search one mask after the other. Raises
    ValueError if the model already has gates, or a mask has a site that the model lacks."""
    model = translator.model
    was_training = model.training
    bank = attach(model, gate="mask")
    model.eval()
    try:
        check_sites(bank, ablations)
        if beam > 1:
            return translate_by_beam(translator, bank, lines, ablations, beam)
        return translate_by_drafts(translator, bank, lines, ablations)
    finally:
        detach(model)
        model.train(was_training)


def check_sites(bank: GateBank, ablations: Iterable[HeadMap]) -> None:
    """Raises ValueError if a mask has a site that the model lacks."""
    sites = set(bank.sites)
    for closed in ablations:
        if strange := [f"{site.name} of {site.heads} heads" for site in closed if site not in sites]:
            raise ValueError(
                f"the model has no {strange[0]}; it has "
                f"{', '.join(f'{site.name} of {site.heads}' for site in sites)}"
            )


def translate_by_beam(
    translator: Translator, bank: GateBank, lines: Sequence[str], ablations: Sequence[HeadMap], beam: int
) -> Ablated:
    drafts = translator.translate(lines, beam=beam)
    changed = []
    for closed in ablations:
        bank.assign({site: xi_of_masks(site, [closed])[0] for site in bank.sites})
        hypotheses = translator.translate(lines, beam=beam)
        changed.append(
            {i: text for i, (text, draft) in enumerate(zip(hypotheses, drafts, strict=True)) if text != draft}
        )
    return Ablated(drafts, changed, len(ablations) * len(lines))


@torch.inference_mode()
def translate_by_drafts(
    translator: Translator, bank: GateBank, lines: Sequence[str], ablations: Sequence[HeadMap]
) -> Ablated:
    model, device = translator.model, translator.device
    options: dict[str, Any] = {
        "max_ratio": translator.search.max_ratio,
        "max_extra": translator.search.max_extra,
    }
    sources = translator.encode(lines)
    drafts: list[list[int]] = [[] for _ in lines]
    for chosen in translator.search_batches([len(ids) for ids in sources], 1):
        found = greedy_search(
            model, pad([sources[i] for i in chosen], model.source_specials, end=True).to(device), **options
        )
        for i, hypothesis in zip(chosen, found, strict=True):
            drafts[i] = hypothesis.ids
    farthest = farthest_distances(model, drafts)
    xi = {site: xi_of_masks(site, ablations).to(device) for site in bank.sites}  # (A, H)
    groups = group_by_first_layer(ablations)
    redone: list[dict[int, list[int]]] = [
        {} for _ in ablations
    ]  # for every ablation: line -> translation, where the draft was rejected
    for chosen in check_batches(sources, drafts, BATCH_TOKENS[device.type]):
        bank.assign({site: torch.ones(site.heads) for site in bank.sites})
        source = pad([sources[i] for i in chosen], model.source_specials, end=True).to(device)
        batch_drafts = Drafts(model, source, [drafts[i] for i in chosen], farthest, **options)
        waiting: list[
            tuple[list[tuple[int, int]], DecodingStart]
        ] = []  # (ablation, line) of every rejected row, and where to continue
        size = max(1, ROW_TOKENS[device.type] // batch_drafts.target.numel())
        for (stack, layer), members in groups.items():
            for begin in range(0, len(members), size):
                numbers = torch.tensor(members[begin : begin + size], device=device)
                closing = {site: row[numbers] for site, row in xi.items() if (row[numbers] == 0).any()}
                rows, started = batch_drafts.rejected(bank, stack, layer, closing)
                if started is not None:
                    row_keys = [
                        (int(numbers[row // len(chosen)]), chosen[row % len(chosen)]) for row in rows.tolist()
                    ]
                    waiting.append((row_keys, started))
                if sum(len(each) for each, _ in waiting) >= WAITING:
                    decode_waiting(translator, bank, xi, waiting, redone)
        decode_waiting(translator, bank, xi, waiting, redone)
    texts = iter(translator.target_vocab.decode([*drafts, *(ids for row in redone for ids in row.values())]))
    draft_texts = [next(texts) for _ in drafts]
    redone_texts = [{i: next(texts) for i in row} for row in redone]
    changed = [{i: text for i, text in row.items() if text != draft_texts[i]} for row in redone_texts]
    return Ablated(draft_texts, changed, sum(map(len, redone)))


def decode_waiting(
    translator: Translator,
    bank: GateBank,
    xi: dict[HeadSite, Tensor],
    waiting: list[tuple[list[tuple[int, int]], DecodingStart]],
    redone: list[dict[int, list[int]]],
) -> None:
    """Decode all waiting rows together from where their drafts were rejected, and empty the list."""
    if not waiting:
        return
    row_keys = [pair for pairs, _ in waiting for pair in pairs]
    numbers = torch.tensor([ablation for ablation, _ in row_keys], device=translator.device)
    bank.assign({site: row[numbers] for site, row in xi.items()})  # (R, H)
    decoded = decode_on(translator.model, [each for _, each in waiting])
    for (ablation, line), ids in zip(row_keys, decoded, strict=True):
        redone[ablation][line] = ids
    waiting.clear()


def check_batches(sources: Sequence[list[int]], drafts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """Indices of the lines that are not empty, in batches with little padding: long drafts first, then long
    sources."""
    order = sorted(
        (i for i, ids in enumerate(sources) if ids), key=lambda i: (-len(drafts[i]), -len(sources[i]), i)
    )
    batches: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, len(sources[i]) + 1, len(drafts[i]) + 1)
        if not batches or (len(batches[-1]) + 1) * longest > tokens:
            batches.append([])
            longest = max(len(sources[i]) + 1, len(drafts[i]) + 1)
        batches[-1].append(i)
    return batches


FirstLayer = tuple[
    str, int
]  # the stack, encoder or decoder, and the layer in which a mask first closes a head


def group_by_first_layer(ablations: Sequence[HeadMap]) -> dict[FirstLayer, list[int]]:
    """Indices of the ablations by the layer in which they first differ from the unpruned model; those that
    close nothing are left out."""
    groups: dict[FirstLayer, list[int]] = {}
    for number, closed in enumerate(ablations):
        touched = [(site.kind != "enc-self", site.layer) for site, row in closed.items() if row.any()]
        if touched:
            in_decoder, layer = min(touched)
            groups.setdefault(("decoder" if in_decoder else "encoder", layer), []).append(number)
    return groups


def xi_of_masks(site: HeadSite, ablations: Sequence[HeadMap]) -> Tensor:
    """(A, H): 0 at closed heads, 1 elsewhere."""
    return torch.stack(
        [1.0 - closed[site].float() if site in closed else torch.ones(site.heads) for closed in ablations]
    )
