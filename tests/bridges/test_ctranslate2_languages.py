"""CTranslate2 with models of several languages: forced first pieces, sources that end in their language,
limits that count both."""

from dataclasses import replace

import pytest

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; pip install ctranslate2")
pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")

from headgates.bridges.exported import open_exported
from headgates.bridges.formats import export
from headgates.bridges.hf import read
from headgates.configs.settings import SearchConfig
from headgates.records.foreign_run import foreign_run
from headgates.records.source import open_source
from tests.bridges.test_ctranslate2 import check_best
from tests.worlds.hugging_face import LINES, options_of
from tests.worlds.translators import settled

TARGETS = ["der Hund schläft .", "eine Katze", "", "Hunde", "die", "der"]


@pytest.mark.parametrize("name", ["nllb", "mbart"])
def test_scores_and_searches_are_the_model_s_up_to_the_limit(hf_folder, tmp_path, name):
    run = foreign_run("hf", read(str(hf_folder(name)), options_of(name)), tmp_path / "runs", {}, {})
    translator = settled(open_source(run.path, device="cpu").translator)
    source, target = translator.model.source_specials, translator.model.target_specials
    assert (len(target.forced), source.end == target.end) == {"nllb": (1, True), "mbart": (0, False)}[name]
    ends = translator.search = SearchConfig(beam=3, max_ratio=1.0, max_extra=7)
    longest = max(best[0].tokens for best in translator.translate_n_best(LINES, beam=1))
    assert longest > len(target.forced) + 2, "the limit that cuts must leave room for what is forced"
    # the parity of scores is checked here
    export(translator, "ct2", tmp_path / "out", lines=LINES, references=TARGETS, provenance={})
    opened = open_exported(tmp_path / "out", threads=1)
    limits = (replace(ends, max_ratio=0.0, max_extra=extra) for extra in (longest - 1, 1))
    for search in (ends, replace(ends, min_length=longest), *limits):
        translator.search = opened.search = search
        for beam in (1, 3):
            _, found = check_best(translator, opened, LINES, beam=beam)
    # a limit never forbids what is forced
    assert {best[0].tokens for best in found} == {len(target.forced) + 1}
