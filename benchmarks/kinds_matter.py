"""Does every kind of attention have work?   The aim for the toy pair: closing all heads of any one kind costs at least 10 BLEU.

Translates the test set with a finished run's base, whole and with all heads of one kind closed (enc-self, dec-self, cross in turn), with
the run's own search settings.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Answer, Benchmark

AIM = 10.0
RESAMPLES = 1000


def find_base(runs: Path) -> Path:
    """The first finished base of the toy pair. Raises ValueError if there is none."""
    from runfolder.folder import find_runs

    for folder in find_runs(runs):
        if folder.path.name.startswith("toy-") and folder.config().get("gate") == "none" and folder.finished():
            return folder.path
    raise ValueError(f"no finished base of the toy pair in {runs}/; make one (python fit.py --gate none) or name a RUN")


def measure(run: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each kind closed, and the facts of the run."""
    import torch

    from configs.cli import from_dict
    from configs.schema import FitConfig
    from data import load_corpus
    from gates import KINDS, HeadMap, attach, detach, find_sites
    from pruning.significance import compare, resample_counts, score
    from runfolder.folder import RunFolder
    from runfolder.source import open_source

    folder = RunFolder.open(run)
    config = from_dict(FitConfig, folder.config(), origin=str(folder / "config.yaml"))
    corpus = load_corpus(
        config.data,
        data_dir=options.data_dir or config.data_dir,
        src=config.src,
        tgt=config.tgt,
        train_files=config.train_files,
        valid_files=config.valid_files,
        test_files=config.test_files,
    )
    count = options.sentences or config.test_sentences or None
    sources, references = corpus.test.sources[:count], corpus.test.targets[:count]
    translator = open_source(run, system="base").translator
    if torch.cuda.is_available():
        translator.model.cuda()
    counts = resample_counts(len(sources), RESAMPLES)
    rows: list[dict[str, Any]] = []
    whole = None
    for kind in ("none", *KINDS):
        closed = 0
        if kind != "none":
            xi = HeadMap({site: torch.zeros(site.heads) for site in find_sites(translator.model) if site.kind == kind})
            closed = xi.heads_total
            attach(translator.model, gate="mask", kinds=[kind], xi=xi)
            translator.model.eval()
        scored = score(translator.translate(sources), references)
        detach(translator.model)
        whole = whole or scored
        compared = compare(scored, whole, counts)
        keys = ("bleu_ci95", "bleu_difference", "bleu_difference_ci95", "bleu_p_value", "chrf_difference")
        row = {"closed": kind, "heads_closed": closed, **scored.values, **{key: compared[key] for key in keys}}
        rows.append(row | {f"{name}_signature": text for name, text in scored.signatures.items()})
    result = folder.read_json("result.json")
    facts = {"run": folder.path.name, "run_commit": result.get("commit"), "run_command": result.get("command"), "run_seed": config.seed}
    search = translator.search
    facts |= {"corpus": corpus.name, "sentences": len(sources), "beam": search.beam, "length_penalty": search.length_penalty}
    return rows, facts


def answer(options: argparse.Namespace) -> Answer:
    scored_rows, facts = measure(Path(options.run) if options.run else find_base(Path(options.runs)), options)
    rows = []
    for row in scored_rows:
        low, high = row["bleu_difference_ci95"]
        difference = ["", "", ""]
        if row["closed"] != "none":
            difference = [f"{row['bleu_difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", "yes" if row["bleu_difference"] <= -AIM else "no"]
        rows.append([row["closed"], row["heads_closed"], f"{row['bleu']:.2f}", f"{row['chrf']:.2f}", *difference])
    title = f"{facts['run']}, base, {facts['sentences']} sentences, beam {facts['beam']}"
    header = ["closed", "heads", "BLEU", "chrF", "difference", "95%", f"at least {AIM:g} lost"]
    return Answer({"aim": AIM, "rows": scored_rows, **facts}, header, rows, title=title, seed=facts["run_seed"])


main = Benchmark(
    "kinds_matter",
    "BLEU lost when all heads of one kind of attention are closed: at least 10 each",
    __doc__,
    [
        ("run", {"nargs": "?", "help": "run folder whose base translates (default: the toy pair's finished base in --runs)"}),
        ("--runs", {"default": "runs", "help": "where runs are (default: %(default)s)"}),
        ("--data-dir", {"help": "folder with local copies of named corpora, if not the run's own"}),
        ("--sentences", {"type": int, "default": 0, "help": "the first so many of the test set, 0 for what the run used"}),
    ],
    answer,
    peers=["sacrebleu"],
).main

if __name__ == "__main__":
    sys.exit(main())
