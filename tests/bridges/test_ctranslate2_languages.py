"""CTranslate2 with models of several languages: forced first pieces, sources that end in their language,
limits that count both."""

from dataclasses import replace

import pytest

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")
pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")

from headgates.bridges.formats import export, open_exported
from headgates.bridges.hf import read
from headgates.configs.schema import SearchConfig
from headgates.workbench.foreign_run import foreign_run
from headgates.workbench.source import open_source
from tests.worlds.hugging_face import LINES, options_of
from tests.worlds.translators import settled

TARGETS = ["der Hund schläft .", "eine Katze", "", "Hunde", "die", "der"]


@pytest.mark.parametrize("name", ["nllb", "mbart"])
def test_scores_and_searches_are_the_model_s_up_to_the_limit(hf_folder, tmp_path, name):
    run = foreign_run("hf", read(str(hf_folder(name)), options_of(name)), tmp_path / "runs", {}, {})
    translator = settled(open_source(run.path, device="cpu").translator)
    source, target = translator.model.source_specials, translator.model.target_specials
    assert (len(target.forced), source.end == target.end) == {"nllb": (1, True), "mbart": (0, False)}[name]
    ends = SearchConfig(beam=3, max_ratio=1.0, max_extra=7)
    longest = most_tokens(translator, ends)
    assert longest > len(target.forced) + 2, "the limit that cuts must leave room for what is forced"
    for extra, search in {"free": ends, "cut": replace(ends, max_ratio=0.0, max_extra=longest - 1)}.items():
        translator.search = search
        folder = tmp_path / extra
        export(
            translator, "ct2", folder, lines=LINES, references=TARGETS, facts={}
        )  # the parity of scores is checked here
        opened = open_exported(folder, threads=1)
        for beam in (1, 3):
            expected, found = (each.translate_n_best(LINES, beam=beam) for each in (translator, opened))
            assert [(best[0].text, best[0].tokens) for best in found] == [
                (best[0].text, best[0].tokens) for best in expected
            ]
            assert [best[0].score for best in found] == pytest.approx(
                [best[0].score for best in expected], abs=1e-3
            )
        # greedy search is the same up to the limit, so that it must meet it; a beam may prefer what ends
        # earlier
        assert extra == "free" or most_tokens(opened, search) == longest - 1
    translator.search = opened.search = replace(ends, max_ratio=0.0, max_extra=1)
    for beam in (1, 3):  # a limit never forbids what is forced
        for model in (translator, opened):
            assert {best[0].tokens for best in model.translate_n_best(LINES, beam=beam)} == {
                len(target.forced) + 1
            }


def most_tokens(translator, search: SearchConfig) -> int:
    """The tokens of the longest greedy translation of the lines."""
    translator.search = search
    return max(best[0].tokens for best in translator.translate_n_best(LINES, beam=1))
