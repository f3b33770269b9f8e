"""analyze.py --contrast on the example run, whose model has learned the toy language: what is certain of it,
and what its user sees."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headgates.analysis.contrasts import pair_values
from headgates.analysis.patching import Patching
from headgates.analysis.without_heads import all_heads, closing
from headgates.commands import analyze
from headgates.data.contrast import NAMED, Contrast, read_contrasts
from headgates.explain.contrast import EncodedContrasts, contrast_slug, preference
from headgates.gates import HeadMap
from headgates.gates.headmap import head_name
from headgates.models.translator import token_log_probs
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from headgates.records.table import read_table
from tests.test_analyze import page_data
from tests.worlds.runs import assert_one_line, well

EXAMPLE = Path(__file__).parents[1] / "examples/toy_run/toy-en-de-none-s1"
FEW = ["--what", "confidence", "--sentences", "29", "--set", "examples=1"]


@pytest.fixture(scope="module")
def translator():
    return open_source(EXAMPLE).translator


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(shutil.copytree(EXAMPLE, tmp_path / "runs" / EXAMPLE.name))


def mirrored(contrasts: list[Contrast]) -> list[Contrast]:
    """The same with the corrupted sources, of which the wrong outputs are right."""
    return [Contrast(each.corrupted, each.wrong, each.right, each.source) for each in contrasts]


def leads(translator, contrasts, *closings: HeadMap):
    encoded = EncodedContrasts.of(translator, contrasts, "these")
    batches = encoded.batches(range(len(encoded)))
    return pair_values(translator.model, batches, [HeadMap({}), *closings], preference)


def test_a_lead_is_what_the_log_probabilities_of_both_outputs_say(translator):
    whole, begun = (
        Contrast("The dog sleeps.", "Der Hund schläft.", "Die Hunde schlafen."),
        "The man must help a cow.",
    )
    contrasts = [whole, Contrast(begun, "Der Mann muss einer ...", "Der Mann muss eine ...")]
    ((first, second),) = leads(translator, contrasts)
    vocab, specials = translator.target_vocab, translator.target_vocab.specials

    def log_p(source: str, output: str, *, ends: bool) -> float:
        ids = [specials.beginning, *vocab.encode([output])[0], *[specials.end] * ends]
        read = torch.tensor([[*vocab.encode([source])[0], specials.end]])
        with torch.no_grad():
            return float(token_log_probs(translator.model, read, torch.tensor([ids])).sum())

    expected = log_p(whole.source, whole.right, ends=True) - log_p(whole.source, whole.wrong, ends=True)
    assert float(first) == pytest.approx(expected, abs=1e-4)
    a, b = (log_p(begun, f"Der Mann muss {word}", ends=False) for word in ("einer", "eine"))
    assert float(second) == pytest.approx(a - b, abs=1e-4)
    assert a > b


@pytest.mark.parametrize("name", NAMED["toy"])
def test_the_model_gets_the_toy_contrasts_right_and_without_its_heads_nothing_is_left(translator, name):
    contrasts = read_contrasts(f"toy:{name}")
    model = translator.model
    everything = closing(all_heads(model))
    cross = closing([head for head in all_heads(model) if head[0].kind == "cross"])
    clean, none, blind = leads(translator, contrasts, everything, cross)
    assert float((clean > 0).double().mean()) >= 0.97
    assert clean.mean() > 3
    assert abs(none.mean()) < 0.2 * clean.mean()
    # a decoder that does not see the source has the same lead for both sources, with its sign turned
    other_clean, _, other_blind = leads(translator, mirrored(contrasts), everything, cross)
    torch.testing.assert_close(blind, -other_blind, atol=1e-4, rtol=0)
    assert other_clean.mean() > 3


@pytest.mark.parametrize("name", ["number", "order"])
def test_the_heads_of_cross_attention_carry_all_of_a_contrast_between_them(translator, name):
    contrasts = read_contrasts(f"toy:{name}")
    encoded = EncodedContrasts.of(translator, contrasts, name)
    numbers = encoded.equal
    assert len(numbers) >= 50
    (batch,), (other,) = encoded.batches(numbers), encoded.batches(numbers, corrupted=True)
    patching = Patching(translator.model, batch, other, preference)
    heads = all_heads(translator.model)
    cross = closing([head for head in heads if head[0].kind == "cross"])
    assert patching.clean.mean() > 3 > -3 > patching.corrupted.mean()
    torch.testing.assert_close(patching.activation(cross), patching.corrupted, atol=1e-3, rtol=1e-4)
    decoder = closing([head for head in heads if head[0].stack == "decoder"])
    torch.testing.assert_close(patching.path(decoder), patching.corrupted, atol=1e-3, rtol=1e-4)
    (mirror,) = leads(translator, mirrored([contrasts[number] for number in numbers]))
    torch.testing.assert_close(patching.corrupted, -mirror, atol=1e-3, rtol=1e-4)
    into = {part: cross for part in "kv"}
    encoder = closing([head for head in heads if head[0].stack == "encoder"])
    carried = patching.clean - patching.path(encoder, into=into)
    assert carried.mean() > 1, "the encoder's heads reach the decoder by the memory"
    torch.testing.assert_close(patching.path(encoder), patching.clean, atol=1e-3, rtol=1e-4)


def written(path: Path, contrasts: list[Contrast]) -> Path:
    columns = ([each.source, each.corrupted, each.right, each.wrong] for each in contrasts)
    path.write_text("".join("\t".join(filter(None, line)) + "\n" for line in columns), encoding="utf-8")
    return path


def test_the_command_says_which_heads_a_contrast_needs_and_the_page_keeps_each(run, called, translator):
    analyze_here, receiver = called(analyze), ["--set", "contrast_into=decoder.1.cross.3.v"]
    contrasts = read_contrasts("toy:case")[:100]
    mine = written(run.path.parent / "case.tsv", contrasts)
    out = well(analyze_here(run.path, "--contrast", mine, *receiver, *FEW))
    assert "the right output is" in out
    assert "Necessary and enough? On 50 contrasts" in out
    content = run.read_json("analysis/base/contrast-runs-case.json")
    facts = content["facts"]
    assert facts["without"]["value"] < facts["without"]["random"] < facts["held_out_clean"]
    assert facts["alone"]["value"] > facts["alone"]["random"]
    assert facts["without"]["percentile"] > 0.9
    assert facts["alone"]["percentile"] > 0.8  # three of 48 heads
    rows = read_table(run, "analysis/base/contrast-runs-case.csv")
    assert len(rows) == 48
    by_name = {f"{row['site']}.{row['head']}": row for row in rows}
    heads = {head_name(head): head for head in all_heads(translator.model)}
    named = closing(heads[name] for name in facts["named"])
    _, without = leads(translator, contrasts[1::2], named)  # not those that name the heads
    assert facts["without"]["value"] == pytest.approx(float(without.mean()), abs=1e-4)
    clean, without = leads(translator, contrasts, closing([heads["decoder.1.cross.3"]]))
    row = by_name["decoder.1.cross.3"]
    assert row["effect"] == pytest.approx(float((clean - without).mean()), abs=1e-4)
    assert row["effect_low"] < row["effect"] < row["effect_high"]
    assert row["effect_p_value"] <= row["effect_p_value_holm"] < 0.01
    assert row["patch"] == pytest.approx(row["direct"], abs=1e-4)  # the last attention
    assert abs(row["into"]) < 1e-6 < abs(by_name["encoder.0.enc-self.6"]["into"])
    assert "contrast: there already" in well(analyze_here(run.path, "--contrast", mine, *receiver, *FEW))
    few = [replace(each, corrupted=None) for each in read_contrasts("toy:order")[:7]]
    other = written(run.path.parent / "order.tsv", few)
    named = ["--set", "contrast_heads=decoder.0.cross.1,decoder.1.cross.5"]
    out = well(analyze_here(run.path, "--contrast", other, *named, *FEW))
    assert "The heads: decoder.0.cross.1, decoder.1.cross.5." in out
    assert "Patched" not in out
    shown = [(each["name"], len(each["rows"])) for each in page_data(run)["contrasts"]]
    assert shown == [(str(mine), 48), (str(other), 48)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--contrast", "toy:cas"], "did you mean 'case'"),
        (["--contrast", "en-de:numbr"], "did you mean 'number'"),
        (["--contrast", "nowhere.tsv"], "no file nowhere.tsv"),
        (
            ["--contrast", "toy:case", "--set", "contrast_into=decoder.1.cross.3"],
            "expected a head's q, k or v",
        ),
        (["--contrast", "toy:case", "--set", "contrast_heads=decoder.1.cross.8"], "the model has no head"),
        (["--contrast", "toy:case", "--text", str(EXAMPLE / "command.txt")], "leave --system, --text"),
    ],
)
def test_what_cannot_be_contrasted_is_one_line(run, called, words, said):
    code, _, error = called(analyze)(run.path, *words, *FEW)
    assert code == 1
    assert_one_line(error, said)


def test_settings_without_a_contrast_are_refused(run, called):
    code, _, error = called(analyze)(run.path, "--set", "contrast_into=decoder.1.cross.3.v")
    assert code == 2
    assert "contrast_into is for --contrast: add it" in error


def test_files_are_named_by_the_contrast():
    slugs = {"toy:case": "toy-case", "en-de:number": "en-de-number"}
    slugs |= {"a/b.c/mine.x.tsv": "b.c-mine.x", "mine.tsv": "mine"}
    slugs |= {"c/number.en.tsv.gz": "c-number.en", "c/number.de.tsv": "c-number.de"}
    assert {name: contrast_slug(name) for name in slugs} == slugs
