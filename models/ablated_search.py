"""Greedy translations of a model under many masks, computed as one job by checking drafts.

The draft is the unpruned model's translation. One teacher-forced pass under a mask gives the masked model's
choice at every position of the draft. If all agree with it, the draft is the masked translation; otherwise
the sentence is searched again under the mask. The result is exactly that of a greedy search under the mask.
A position whose two best logits lie within TIE_MARGIN counts as different, because rounding may differ there
between a pass over the whole draft and one step at a time.

A row is one sentence under one mask. Masks whose first closed head is in the same layer go through the model
together and reuse the unpruned model's states before that layer: the encoder's output serves the ablations of
all decoder heads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headgates.data.batch import pad
from headgates.gates import GateBank, HeadMap, HeadSite, attach, detach
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.remove import kinds_with
from headgates.models.draft_check import Drafts
from headgates.models.line_translator import length_batches
from headgates.models.search import best_hypotheses, source_limits
from headgates.models.translator import Translator

SEARCH_TOKENS = {
    "cpu": 700,
    "gpu": 4_000,
}  # source and target tokens, the longer side, of the sentences that are checked together
ROW_TOKENS = {
    "cpu": 4_000,
    "gpu": 200_000,
}  # target tokens of the rows that go through the model at once: on a CPU they fit in its cache


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
    bank = attach(model, gate="mask", kinds=kinds_with(*ablations))
    try:
        check_sites(bank, ablations)
        with evaluation_mode(model):
            if beam == 1:
                return translate_by_drafts(translator, bank, lines, ablations)
            drafts = translator.translate(lines, beam=beam)
            changed = []
            for closed in ablations:
                bank.assign({site: xi_of_masks(site, [closed])[0] for site in bank.sites})
                both = zip(translator.translate(lines, beam=beam), drafts, strict=True)
                changed.append({i: text for i, (text, draft) in enumerate(both) if text != draft})
            return Ablated(drafts, changed, len(ablations) * len(lines))
    finally:
        detach(model)


def check_sites(bank: GateBank, ablations: Iterable[HeadMap]) -> None:
    """Raises ValueError if a mask has a site that the model lacks."""
    sites = set(bank.sites)
    for closed in ablations:
        if strange := [f"{site.name} of {site.heads} heads" for site in closed if site not in sites]:
            raise ValueError(
                f"the model has no {strange[0]}; it has "
                f"{', '.join(f'{site.name} of {site.heads}' for site in sites)}"
            )


@torch.inference_mode()
def translate_by_drafts(
    translator: Translator, bank: GateBank, lines: Sequence[str], ablations: Sequence[HeadMap]
) -> Ablated:
    # the passes over drafts weigh all pieces, so their search does
    translator = translator.with_shortlist(None)
    model, device, greedy = translator.model, translator.device, replace(translator.search, beam=1)
    kind = "cpu" if device.type == "cpu" else "gpu"
    sources = translator.encode(lines)
    drafts = [best[0].ids if best else [] for best in translator.n_best(sources, greedy)]
    xi = {site: xi_of_masks(site, ablations).to(device) for site in bank.sites}  # (A, H)
    groups = group_by_first_layer(ablations)
    rejected: list[tuple[int, int]] = []  # (ablation, line) of every row whose draft is not its translation

    def padded(lines: Sequence[int]) -> Tensor:
        return pad([sources[i] for i in lines], model.source_specials, end=True).to(device)

    lengths = [max(map(len, pair)) if pair[0] else 0 for pair in zip(sources, drafts, strict=True)]
    for chosen in length_batches(lengths, SEARCH_TOKENS[kind]):
        bank.assign({site: torch.ones(site.heads) for site in bank.sites})
        source = padded(chosen)
        limits = torch.from_numpy(source_limits(model, source, greedy)).to(device)
        checked = Drafts(model, source, [drafts[i] for i in chosen], limits, greedy.min_length)
        size = max(1, ROW_TOKENS[kind] // checked.target.numel())
        for (stack, layer), members in groups.items():
            for begin in range(0, len(members), size):
                numbers = members[begin : begin + size]
                closing = {site: row[numbers] for site, row in xi.items() if (row[numbers] == 0).any()}
                places = (divmod(row, len(chosen)) for row in checked.rejected(bank, stack, layer, closing))
                rejected += [(numbers[number], chosen[i]) for number, i in places]
    redone: dict[tuple[int, int], list[int]] = {}  # (ablation, line) -> translation
    for some in length_batches([len(sources[line]) for _, line in rejected], ROW_TOKENS[kind]):
        rows = [rejected[i] for i in some]
        bank.assign({site: row[[ablation for ablation, _ in rows]] for site, row in xi.items()})  # (R, H)
        found = best_hypotheses(model, padded([line for _, line in rows]), greedy)
        redone.update(zip(rows, (best[0].ids for best in found), strict=True))
    texts = translator.target_vocab.decode([*drafts, *redone.values()])
    changed: list[dict[int, str]] = [{} for _ in ablations]
    for (ablation, line), text in zip(redone, texts[len(drafts) :], strict=True):
        if text != texts[line]:
            changed[ablation][line] = text
    return Ablated(texts[: len(drafts)], changed, len(redone))


FirstLayer = tuple[
    str, int
]  # the stack, encoder or decoder, and the layer in which a mask first closes a head


def group_by_first_layer(ablations: Sequence[HeadMap]) -> dict[FirstLayer, list[int]]:
    """Indices of the ablations by the layer in which they first differ from the unpruned model; those that
    close nothing are left out."""
    groups: dict[FirstLayer, list[int]] = {}
    for number, closed in enumerate(ablations):
        touched = [(site.stack == "decoder", site.layer) for site, row in closed.items() if row.any()]
        if touched:
            in_decoder, layer = min(touched)
            groups.setdefault(("decoder" if in_decoder else "encoder", layer), []).append(number)
    return groups


def xi_of_masks(site: HeadSite, ablations: Sequence[HeadMap]) -> Tensor:
    """(A, H): 0 at closed heads, 1 elsewhere."""
    return torch.stack(
        [1.0 - closed[site].float() if site in closed else torch.ones(site.heads) for closed in ablations]
    )
