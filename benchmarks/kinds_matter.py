"""Does every kind of attention have work?   The aim for the toy pair: closing all heads of any one kind costs at least 10 BLEU.

Translates the test set with a finished run's base, whole and with all heads of one kind closed (enc-self, dec-self, cross in turn), with
the run's own search settings.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from speed.measure import arguments, record, set_threads, show

QUESTION = "BLEU lost when all heads of one kind of attention are closed: at least 10 each"
AIM = 10.0
RESAMPLES = 1000


def find_base(runs: Path) -> Path:
    """The first finished base of the toy pair. Raises ValueError if there is none."""
    from runfolder.folder import find_runs

    for folder in find_runs(runs):
        if folder.path.name.startswith("toy-") and folder.config().get("gate") == "none" and folder.finished():
            return folder.path
    raise ValueError(f"no finished base of the toy pair in {runs}/; make one (python fit.py --gate none) or name a RUN")


def measure(run: Path, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows, one for each kind closed, and what is known of the run."""
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
        found = compare(scored, whole, counts)
        keys = ("bleu_ci95", "bleu_difference", "bleu_difference_ci95", "bleu_p_value", "chrf_difference")
        row = {"closed": kind, "heads_closed": closed, **scored.values, **{key: found[key] for key in keys}}
        rows.append(row | {f"{name}_signature": text for name, text in scored.signatures.items()})
    result = folder.read_json("result.json")
    about = {"run": folder.path.name, "run_commit": result.get("commit"), "run_command": result.get("command"), "run_seed": config.seed}
    search = translator.search
    about |= {"corpus": corpus.name, "sentences": len(sources), "beam": search.beam, "length_penalty": search.length_penalty}
    return {"rows": rows}, about


def main() -> int:
    parser = arguments("kinds_matter", __doc__)
    parser.add_argument("run", nargs="?", help="run folder whose base is translated with (default: the toy pair's finished base in --runs)")
    parser.add_argument("--runs", default="runs", help="where runs are (default: %(default)s)")
    parser.add_argument("--data-dir", help="folder with local copies of named corpora, if not the run's own")
    parser.add_argument("--sentences", type=int, default=0, help="the first so many of the test set, 0 for what the run used")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()
    set_threads(options.threads)
    try:
        numbers, about = measure(Path(options.run) if options.run else find_base(Path(options.runs)), options)
    except ValueError as error:
        print(f"kinds_matter: error: {error}", file=sys.stderr)
        return 1
    rows = []
    for row in numbers["rows"]:
        low, high = row["bleu_difference_ci95"]
        difference = ["", "", ""]
        if row["closed"] != "none":
            difference = [f"{row['bleu_difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", "yes" if row["bleu_difference"] <= -AIM else "no"]
        rows.append([row["closed"], row["heads_closed"], f"{row['bleu']:.2f}", f"{row['chrf']:.2f}", *difference])
    print(f"{about['run']}, base, {about['sentences']} sentences, beam {about['beam']}")
    show(["closed", "heads", "BLEU", "chrF", "difference", "95%", f"at least {AIM:g} lost"], rows)
    answer = {"aim": AIM, **numbers, **about}
    record(options.out, "kinds_matter", QUESTION, answer, precision="32", seed=about["run_seed"], peers=["sacrebleu"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
