"""How much slower is a training step with gates?   The aim: at most 3%.

Two copies of the same weights take the same batches of real text in turns, blocks of steps without gates and blocks with a Hard Concrete
gate on every head; everything else is fit.py's own step (benchmarks/product_step.py). Sizes: `toy`, the defaults of configs/schema.py, and
`multi30k`, configs/multi30k.yaml.
"""

import copy
import itertools
import sys
import tempfile
from typing import Any

from speed.measure import ROOT, alternate, arguments, at_least_one, load_average, ratio, record, set_threads, show, spread

QUESTION = "training step with gates over without: at most 1.03 (same batches, alternating)"
AIM = 1.03
SEED = 1


def measure(size: str, data_dir: str | None, *, precision: str, steps: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a step, plain and gated, and their ratio."""
    import torch

    from benchmarks.product_step import gated_step, plain_step
    from configs.cli import from_dict
    from configs.schema import FitConfig
    from configs.yaml_file import load_yaml
    from data import load_corpus
    from data.corpus import TranslationData, make_vocabs
    from models.transformer import Transformer

    config = FitConfig() if size == "toy" else from_dict(FitConfig, load_yaml(str(ROOT / "configs" / f"{size}.yaml")))
    corpus = load_corpus(config.data, data_dir=data_dir, src=config.src, tgt=config.tgt)
    with tempfile.TemporaryDirectory() as folder:
        source_vocab, target_vocab = make_vocabs(corpus, folder, size=config.text.vocab_size, joint=config.text.joint)
        data = TranslationData(
            corpus=corpus,
            source_vocab=source_vocab,
            target_vocab=target_vocab,
            max_tokens=config.text.max_tokens,
            max_length=config.text.max_length,
            seed=SEED,
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    split = data.split("train")
    batches = [split[item].to(device) for item in itertools.islice(data.sampler(), steps)]
    torch.manual_seed(SEED)
    model = Transformer(config.model, len(source_vocab), len(target_vocab)).to(device)
    plain = plain_step(copy.deepcopy(model), config.finetune, precision)
    gated = gated_step(model, config.finetune, config.gates, lam=config.lam, kinds=config.kinds, precision=precision)
    seconds = alternate({"plain": lambda: plain.block(batches), "gated": lambda: gated.block(batches)}, rounds=rounds)
    return {
        "size": size,
        "parameters": sum(parameter.numel() for parameter in plain.module.model.parameters()),
        "vocabulary": len(target_vocab),
        "heads": gated.module.bank.open().heads_total if gated.module.bank else 0,
        "target_tokens_per_step": sum(batch.target_tokens for batch in batches) / len(batches),
        "plain_ms": spread([1000 * s / len(batches) for s in seconds["plain"]]),
        "gated_ms": spread([1000 * s / len(batches) for s in seconds["gated"]]),
        "ratio": ratio(seconds["gated"], seconds["plain"]),
    }


def main() -> int:
    parser = arguments("gate_overhead", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=["toy", "multi30k"], default=["toy", "multi30k"], help="(default: both)")
    parser.add_argument("--data-dir", help="folder with a local copy of multi30k; without it the text is downloaded")
    parser.add_argument("--steps", type=at_least_one, default=20, help="steps, and batches, of a block (default: %(default)s)")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="timed blocks of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    parser.add_argument("--precision", choices=["auto", "32", "bf16"], default="auto", help="(default: %(default)s)")
    options = parser.parse_args()

    from lightning_modules.stage import resolve_precision

    set_threads(options.threads)
    load, precision = load_average(), resolve_precision(options.precision)
    timing = {"precision": precision, "steps": options.steps, "rounds": options.rounds}
    try:
        sizes = [measure(size, options.data_dir, **timing) for size in options.sizes]
    except ValueError as error:
        print(f"gate_overhead: error: {error}", file=sys.stderr)
        return 1
    rows = []
    for size in sizes:
        plain, gated, cost = size["plain_ms"], size["gated_ms"], size["ratio"]
        between = f"{cost['lowest']:.3f} to {cost['highest']:.3f}"
        verdict = "yes" if cost["median"] <= AIM else "no"
        medians = [f"{plain['median']:.1f}", f"{gated['median']:.1f}", f"{cost['median']:.3f}"]
        rows.append([size["size"], size["heads"], *medians, between, verdict])
    show(["size", "heads", "plain ms/step", "gated ms/step", "ratio", "lowest to highest", f"at most {AIM}"], rows)
    answer = {"aim": AIM, "sizes": sizes, "steps_per_block": options.steps, "rounds": options.rounds, "load_average_before": load}
    record(options.out, "gate_overhead", QUESTION, answer, precision=precision, seed=SEED, peers=["pytorch-lightning"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
