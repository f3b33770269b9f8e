"""How much of the saved multiply-adds comes back as time when half of the heads of every site are removed?   The aim: at least 0.9 of it
for scoring in batches of 64, and a clear gain in batches of 16.

share of the ideal = (t_dense - t_removed) / (t_dense * saved share of the multiply-adds), round by round: 1 is all, 0 is nothing. Scoring
is the teacher-forced pass that gives every target token its log probability; beam-5 search runs to a fixed length. The same model with
these heads closed by gates, whose weights stay, is timed beside the two. Sizes: `base`, Vaswani et al.'s (6 + 6 layers, width 512, 8 heads,
feed-forward 2,048), and `multi30k`, configs/multi30k.yaml, both with random weights, in fp32; random ids, no padding. A run is
`--sentences` sentences in batches of the given size.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from speed.measure import ROOT, alternate, arguments, at_least_one, load_average, ratio, record, set_threads, show, spread

if TYPE_CHECKING:
    from torch import Tensor

    from configs.schema import ModelConfig
    from models.transformer import Transformer

QUESTION = "half of the heads of every site removed: share of the saved multiply-adds that comes back as time (aim: 0.9, scoring, batch 64)"
AIM = 0.9
SEED = 1
VOCABULARY = 8_000
BEAM = 5
WORK = {"base": ["scoring"], "multi30k": ["scoring", f"beam-{BEAM}"]}


def model_config(size: str) -> "ModelConfig":
    from configs.schema import ModelConfig
    from configs.yaml_file import load_yaml

    if size == "base":
        return ModelConfig(d_model=512, ffn=2048, heads=8, encoder_layers=6, decoder_layers=6)
    return ModelConfig(**load_yaml(str(ROOT / "configs" / f"{size}.yaml"))["model"])


def models(config: "ModelConfig", vocabulary: int) -> dict[str, "Transformer"]:
    """The dense model, the same with half of the heads of every site closed by gates, and without these heads."""
    import torch

    from gates import HeadMap, attach, find_sites, remove
    from models.transformer import Transformer

    made = {}
    for name in ("dense", "masked", "removed"):
        torch.manual_seed(SEED)
        model = Transformer(config, vocabulary, vocabulary)
        with torch.no_grad():
            model.output.weight[model.target_specials.end] = 0.0  # never among the best: every search goes on to its last step
        closed = HeadMap({site: torch.randperm(site.heads) < site.heads // 2 for site in find_sites(model)})
        if name == "masked":
            attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
        elif name == "removed":
            remove(model, closed)
        made[name] = model.to("cuda" if torch.cuda.is_available() else "cpu").eval().requires_grad_(False)
    return made


def work(what: str, model: "Transformer", source: "Tensor", target: "Tensor", batch: int) -> Callable[[], list["Tensor"]]:
    """What is timed: all sentences of source (N, S) and target (N, T + 1) in batches. Its tensors have a row a sentence: every token's log
    probability, or the best hypothesis."""
    import torch

    from models.search import beam_search
    from models.translator import token_log_probs

    parts = list(zip(source.split(batch), target.split(batch), strict=True))
    steps = target.shape[1] - 1

    def score() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [token_log_probs(model, *part) for part in parts]

    def search() -> list[torch.Tensor]:
        found = [beam_search(model, part, beam=BEAM, max_ratio=0.0, max_extra=steps) for part, _ in parts]
        return [torch.tensor([best[0].ids for best in each]) for each in found]

    return score if what == "scoring" else search


def multiply_adds(what: str, model: "Transformer", *, sentences: int, length: int) -> dict[str, int]:
    from models.multiply_adds import decoding, scoring

    if what == "scoring":
        return scoring(model, sentences=sentences, source=length, target=length)
    return decoding(model, source=length, steps=[length] * sentences, beam=BEAM)


def figures(seconds: Mapping[str, Sequence[float]], saved: float) -> dict[str, Any]:
    """What follows from the seconds of each round: the ratios, and the share of the ideal, also that of the medians."""
    dense, removed = seconds["dense"], seconds["removed"]
    middle = {name: spread(values)["median"] for name, values in seconds.items()}
    return {
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "dense_over_removed": ratio(dense, removed),
        "dense_over_masked": ratio(dense, seconds["masked"]),
        "saved_share": saved,
        "ideal": 1 / (1 - saved),  # dense over removed if time went with the multiply-adds
        "share_of_ideal": spread([(d - r) / (d * saved) for d, r in zip(dense, removed, strict=True)]),
        "share_of_ideal_of_medians": (middle["dense"] - middle["removed"]) / (middle["dense"] * saved),
    }


def agreement(masked: "Tensor", removed: "Tensor") -> float:
    """The share of sentences whose numbers agree; a near tie may turn a hypothesis another way. Raises ValueError if it is below 0.9, for
    the two are one model and their times would say nothing."""
    share = float(((masked - removed).abs().amax(1) < 1e-3).double().mean())
    if share < 0.9:
        raise ValueError(f"the masked and the removed model agree on {share:.0%} of the sentences only; expected one model twice")
    return share


def measure(
    size: str,
    config: "ModelConfig",
    what: Sequence[str],
    *,
    vocabulary: int,
    batches: Sequence[int],
    sentences: int,
    length: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """A row for each kind of work and batch size."""
    import torch

    from models.multiply_adds import saved_share

    made = models(config, vocabulary)
    device = made["dense"].output.weight.device
    ids = torch.randint(4, vocabulary, (2, sentences, length + 1), generator=torch.Generator().manual_seed(SEED)).to(device)
    both = ("dense", "removed")
    facts = {"size": size, "parameters": {name: sum(weight.numel() for weight in made[name].parameters()) for name in both}}
    rows = []
    for each in what:
        counts = {name: multiply_adds(each, made[name], sentences=sentences, length=length) for name in both}
        saved = saved_share(counts["dense"], counts["removed"])
        for batch in batches:
            blocks = {name: work(each, model, ids[0, :, :length], ids[1], batch) for name, model in made.items()}
            same = agreement(*(torch.cat(blocks[name]()) for name in ("masked", "removed")))
            found = figures(alternate(blocks, rounds=rounds), saved)
            rows.append({**facts, "work": each, "batch": batch, "same_as_masked": same, **found, "multiply_adds": counts})
            print(f"{size}, {each}, batch {batch}: removed {found['dense_over_removed']['median']:.3f} times as fast", flush=True)
    return rows


def table(rows: Sequence[Mapping[str, Any]], sentences: int) -> list[list[str]]:
    """A line for each row: milliseconds a batch, dense over removed, the saved share, the share of the ideal."""
    lines = []
    for row in rows:
        batches = -(-sentences // row["batch"])
        times = [f"{1000 * row['seconds'][name]['median'] / batches:.1f}" for name in ("dense", "masked", "removed")]
        gain, share = row["dense_over_removed"], row["share_of_ideal"]
        cells = [f"{gain['median']:.3f}", f"{gain['lowest']:.3f} to {gain['highest']:.3f}", f"{row['ideal']:.3f}"]
        cells += [f"{row['saved_share']:.1%}", f"{share['median']:.2f}", f"{share['lowest']:.2f} to {share['highest']:.2f}"]
        lines.append([f"{row['size']}, {row['work']}", str(row["batch"]), *times, *cells])
    return lines


def main() -> int:
    parser = arguments("removal_speed", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=list(WORK), default=list(WORK), help="(default: both)")
    parser.add_argument("--batches", type=at_least_one, nargs="+", default=[64, 16, 1], metavar="N", help="batch sizes (default: 64 16 1)")
    parser.add_argument("--sentences", type=at_least_one, default=64, help="of a run (default: %(default)s)")
    parser.add_argument("--length", type=at_least_one, default=25, help="source and target tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=at_least_one, default=10, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()

    set_threads(options.threads)
    load = load_average()
    amount = {"sentences": options.sentences, "length": options.length, "rounds": options.rounds}
    rows: list[dict[str, Any]] = []
    try:
        for size in options.sizes:
            rows += measure(size, model_config(size), WORK[size], vocabulary=VOCABULARY, batches=options.batches, **amount)
    except ValueError as error:
        print(f"removal_speed: error: {error}", file=sys.stderr)
        return 1
    header = ["size, work", "batch", "dense ms", "masked ms", "removed ms", "dense/removed", "lowest to highest", "ideal", "saved"]
    show([*header, "share of ideal", "lowest to highest"], table(rows, options.sentences))
    answer = {"aim": AIM, "measured": rows, "vocabulary": VOCABULARY, "beam": BEAM, **amount, "load_average_before": load}
    record(options.out, "removal_speed", QUESTION, answer, precision="32", seed=SEED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
