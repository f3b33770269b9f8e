"""Say what the heads of a trained model do, and which of them survive pruning.

python analyze.py runs/toy-en-de-none-s1 --siblings
python analyze.py runs/toy-en-de-none-s1 --ablate one
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headgates.commands import start
from headgates.configs.analyses import Analyses
from headgates.configs.fields import REQUIRED, setting
from headgates.data.contrast import read_contrasts
from headgates.data.ranks import first
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.analysis.results import AnalysisResult
    from headgates.explain.analysed_model import AnalysedModel


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(Analyses):
    """What the heads of a trained model do, and which of them pruning leaves.

    python analyze.py runs/toy-en-de-none-s1 --siblings
    python analyze.py runs/toy-en-de-none-s1 --causes
    python analyze.py runs/toy-en-de-none-s1 --ablate one --also multi30k
    python analyze.py runs/multi30k-en-de-none-s1 --what syntax --parses spacy:en_core_web_sm
    """

    sources: list[str] = setting(
        REQUIRED, "run folders on one base: the base, or runs made of it", positional=True
    )
    ablate: Literal["one", "all-but-one"] | None = setting(
        None,
        "Instead measure the metric without each head (one), or with each layer's best head alone "
        "(all-but-one).",
    )
    also: list[str] = setting(
        [],
        "Further test sets, a table each. Corpora by name or folder, or two files, SOURCE:REFERENCE.",
    )
    metrics: list[str] = setting(
        [],
        "Further metrics, as module:function. f(sources, outputs, references) takes lists and returns a "
        "number for each line; their mean is the score.",
        more=True,
    )
    beam: int = setting(1, "Beam width; 1 is greedy.", at_least=1)
    test_sentences: int = setting(0, "Test sentences to translate, 0 for all.", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.also and self.ablate != "one":
            raise ValueError("--also repeats --ablate one on another test set; give --ablate one too")
        given = {"beam": self.beam > 1, "test-sentences": self.test_sentences > 0, "metrics": self.metrics}
        for flag in (f"--{name}" for name, is_given in given.items() if is_given and not self.ablate):
            raise ValueError(f"{flag} is for --ablate: add it, or leave {flag} out")
        if self.ablate and self.sentences:
            raise ValueError("--ablate reads test lines: give --test-sentences, and leave --sentences out")
        names = ("what", "text", "system", "causes", "contrast", "siblings", "name", "examples_from")
        if self.ablate and (name := next((name for name in names if getattr(self, name)), None)):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--ablate closes heads of the base in place of the analyses; leave {flag} out")
        if self.ablate and len(self.sources) > 1:
            raise ValueError(f"--ablate closes heads of one base; expected one run, got {len(self.sources)}")


def main() -> int:
    return start(
        "analyze",
        AnalyzeOptions,
        analyze,
        interrupted="the same command goes on after the last finished analysis",
    )


def analyze(options: AnalyzeOptions, given: Mapping[str, Any]) -> None:
    """Run the analyses, then combine them: roles, correlations, survival, the page and the figures."""
    from headgates.lab.processes import join
    from headgates.records.named_paths import check_data_dir, check_files, check_run

    join()
    for source in options.sources:
        check_run(source)
    check_data_dir(options.data_dir)
    kind, _, trees = (options.parses or "").partition(":")
    check_files(options.text, options.examples_from, trees if kind == "conllu" else None)
    if options.contrast is not None:
        read_contrasts(options.contrast)
    if options.ablate is not None:
        ablate_heads(options)
        return
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.explain.analysed_model import AnalysedModel
    from headgates.explain.analyses import chosen_analyses, earlier_results, run_analyses

    analysed = AnalysedModel.open(options.sources, options, say)
    results_folder = analysed.folder / analysed.results_folder
    print(f"{analysed.folder.path}: {analysed.system}; results go to {results_folder}", flush=True)
    if nothing := next(filter(None, (row.unlearned for row in analysed.base.rows())), ""):
        print(f"{nothing}.", flush=True)
    results = run_analyses(analysed, chosen_analyses(analysed))
    first(lambda: combine(analysed, earlier_results(analysed, list(results)) | results))


def combine(analysed: "AnalysedModel", results: "dict[str, AnalysisResult]") -> None:
    """Roles, correlations and survival from the results, with their tables, pages and figures."""
    from headgates.explain.findings import find
    from headgates.report import analysis_tables, causes
    from headgates.report.contrasts import contrast_table
    from headgates.report.fill import page_data, write_pages
    from headgates.report.head_figures import draw_all
    from headgates.report.page import write_page
    from headgates.report.report_data import shown_sites

    found = find(analysed, results)
    data = page_data(analysed, results, found)
    sites = shown_sites(analysed, analysed.config.attention)
    analysis_tables.heads_table(analysed, found, sites)
    analysis_tables.nearest_table(analysed, found.nearest)
    analysis_tables.syntax_table(results)
    analysis_tables.correlations_table(found.correlations)
    analysis_tables.survival_table(found.survival, found.tests)
    if found.causes is not None:
        causes.causes_table(found.causes, analysed.source.task.metrics[0])
    if found.contrast is not None:
        contrast_table(found.contrast)
    if analysed.is_whole:
        pages = write_pages(analysed, data, [*analysed.folders, analysed.base])
    else:  # of one system or one text: the run's own page shows everything
        pages = [analysed.folder / f"{analysed.results_folder}/report.html"]
        write_page(data, pages[0])
    for path in pages:
        print(f"report: {path}")
    for path in draw_all(analysed, found):
        print(f"figure: {path}.png")


def ablate_heads(options: AnalyzeOptions) -> None:
    """Remove each head of the base alone, or all but one of each layer; with --also on other test sets."""
    import torch

    from headgates.explain import ablation
    from headgates.explain.transfer import transfer
    from headgates.models.translator import Translator
    from headgates.records.provenance import device_name, provenance
    from headgates.records.source import open_source
    from headgates.report.fill import update_pages
    from headgates.report.head_figures import draw_matrix
    from headgates.report.pruning_figures import draw_transfer
    from headgates.report.pruning_tables import all_but_one_table, one_table, transfer_table
    from headgates.tasks.own_metric import check_metrics, own_metric

    assert options.ablate is not None
    if options.threads:
        torch.set_num_threads(options.threads)
    source = open_source(options.sources[0], unpruned=True, options=options, finished=True)
    if isinstance(source.predictor, Translator):
        source.predictor.search = replace(source.predictor.search, beam=options.beam)
    source.task.further = tuple(map(own_metric, options.metrics))
    first(lambda: check_metrics(source.task.further, *source.lines("test", 1)))
    others = [source.other(corpus, options.test_sentences) for corpus in options.also]
    print(f"{source.folder.path}: the base; results are written there", flush=True)
    splits = ["test"] if options.ablate == ablation.ONE else ["valid", "test"]
    texts = {split: source.lines(split, options.test_sentences) for split in splits}
    shared: dict[str, Any] = {
        "kinds": options.attention,
        "facts": provenance(device_name(), "32", source.config["seed"]),
        "fresh": options.fresh,
    }
    rows = ablation.ablate(options.ablate, source, texts, **shared)
    metric, folder = source.task.metrics[0], source.folder

    def figure(table: str) -> Any:
        path = folder / f"ablation/{ablation.table_name(table, options.attention, options.beam)}"
        print(f"figure: {path}.png")
        return path

    if not source.unlearned:
        (one_table if options.ablate == ablation.ONE else all_but_one_table)(source, rows)
    if options.ablate == ablation.ONE:
        title = f"{folder.path.name}: {metric.title} without each head, minus that of the base"
        draw_matrix(rows, figure(ablation.ONE), metric=metric, title=title)
    for name, text in others:
        both, correlations = transfer(source, texts["test"], (name, text), **shared)
        transfer_table(name, metric.title, correlations)
        found = {each: correlations["all"][each] for each in ("pearson", "spearman")}
        if all(found.values()):
            path, names = figure(f"transfer-{name}"), (source.corpus.name, name)
            draw_transfer(both, path, metric=metric, names=names, **found)
    if source.unlearned:
        print(f"{source.unlearned}.")
    for page in first(lambda: update_pages(folder, say, data_dir=source.data_dir, corpus=source.corpus)):
        print(f"report: {page}")


if __name__ == "__main__":
    sys.exit(main())
