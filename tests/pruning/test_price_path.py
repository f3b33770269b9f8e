"""--max-drop among prices: one run visits them all, where what each head is worth is planted."""

import torch

from headgates.configs.recipe import Lambda, MaxDrop, Recipe
from headgates.gates import KINDS, find_sites, heads_left
from headgates.records.folder import RunFolder
from headgates.report.table import show_path
from headgates.tasks.translation import Translation
from tests.worlds.made_runs import BASE, made_on, opened

PRICES = (0.005, 0.1)
WORTH = torch.tensor([0.001, 0.02, 0.02, 0.5])  # nats a token that the heads 0 to 3 of each site are worth
LENIENT = 100.0
GATES = {"gates.settle": 0.25, "gates.lambda_warmup": 2, "gates.lr": 0.3}


MEASURED = Translation.loss


def planted_loss(task, model, batch, *, smoothing=0.0):
    """A token costs what the heads are worth that are gone, and of gated ones the share that P(closed) says;
    so a head stays where it is worth more than the price. The weights do not matter."""
    bank = model.head_gates.items() if hasattr(model, "head_gates") else ()
    gates = {site.name: gate for site, gate in bank}
    if not model.training:
        return MEASURED(task, model, batch, smoothing=smoothing)
    cost = 0 * sum(parameter.sum() for parameter in model.parameters())
    for site, left in heads_left(model, KINDS).items():
        stays = torch.ones(int(left.sum()))
        if (gate := gates.get(site.name)) is not None:
            xi = gate()  # which training must ask for
            stays = xi if gate.binarised else gate.open_prob()
        cost = cost + WORTH.sum() - (WORTH[left] * stays).sum()
    return cost * batch.target_tokens


def test_what_stays_at_a_price_differs_from_a_run_at_that_price_alone(tiny, monkeypatch, capsys):
    monkeypatch.setattr(Translation, "loss", planted_loss)
    sites = sorted(site.name for site in find_sites(opened(RunFolder(tiny / BASE)).model))
    row = made_on(tiny, Recipe("l0", MaxDrop(LENIENT, prices=PRICES), epochs=4), **GATES)
    path = row.result.path
    assert [(each["asked"], each["heads"]) for each in path] == [
        ("λ 0.005", 3 * len(sites)),
        ("λ 0.1", len(sites)),
    ]
    for price, each in zip(PRICES, path, strict=True):
        alone = made_on(tiny, Recipe("l0", Lambda(price), epochs=4), **GATES)
        worth_it = [head for head, worth in enumerate(WORTH.tolist()) if worth > price]
        assert alone.result.heads_by_site == dict.fromkeys(sites, worth_it)
        assert each["heads"] == alone.result.heads_open
    assert row.result.heads_by_site == alone.result.heads_by_site  # the limit lets the smallest pass
    capsys.readouterr()
    show_path(row.result, "BLEU")
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[3:]] == [
        ["λ", f"{price:g}", f"{each['heads']}"] for price, each in zip(PRICES, path, strict=True)
    ]
