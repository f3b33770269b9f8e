"""What does the importance of all heads cost?   The aim: at most 1.15 times one forward and backward pass over the same sentences.

The plain pass is an evaluation-mode forward pass, the summed loss, and its gradients to all weights; importance (analysis/importance.py)
asks for those to xi alone, in the three places of the absolute value (prune.py --abs). All four take the same batches of real text in
turns, in fp32, at each batch size. Sizes: `toy`, the defaults of configs/schema.py, and `multi30k`, configs/multi30k.yaml, with untrained
weights.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.sized import sized
from speed.measure import alternate, arguments, at_least_one, load_average, ratio, record, set_threads, show, spread

if TYPE_CHECKING:
    from data.batch import Batch
    from models.transformer import Transformer

QUESTION = "importance of all heads over one plain forward and backward pass: at most 1.15 (same sentences, alternating)"
AIM = 1.15
SEED = 1
FORMS = ("sentence", "token", "batch")


def plain_pass(model: "Transformer", batches: Sequence["Batch"]) -> None:
    """Gradients of each batch's summed loss to all weights."""
    import torch

    from models.loss import linear_cross_entropy

    weights = list(model.parameters())
    for batch in batches:
        memory, bias = model.encode(batch.source)
        hidden = model.decode(memory, bias, batch.target_in)
        loss = linear_cross_entropy(hidden, model.output.weight, batch.target_out, padding=model.target_specials.padding)
        torch.autograd.grad(loss, weights)


def measure(size: str, data_dir: str | None, *, sentences: int, max_tokens: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """For each batch size, the seconds of a pass and of each form of importance, and their ratios."""

    from analysis.importance import importance

    _, data, model = sized(size, sentences=sentences, data_dir=data_dir, seed=SEED)
    found = []
    for tokens in max_tokens:
        batches = [batch.to(model.output.weight.device) for batch in data.batches("train", tokens)]
        blocks: dict[str, Any] = {form: lambda form=form: importance(model, batches, absolute=form) for form in FORMS}  # noqa: B023
        seconds = alternate({"plain": lambda: plain_pass(model, batches), **blocks}, rounds=rounds)  # noqa: B023
        found.append(
            {
                "size": size,
                "max_tokens": tokens,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "sentences": sum(len(batch) for batch in batches),
                "target_tokens": sum(batch.target_tokens for batch in batches),
                "batches": len(batches),
                "plain_s": spread(seconds["plain"]),
                "importance_s": {form: spread(seconds[form]) for form in FORMS},
                "ratio": {form: ratio(seconds[form], seconds["plain"]) for form in FORMS},
            }
        )
    return found


def main() -> int:
    parser = arguments("importance_cost", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=["toy", "multi30k"], default=["toy", "multi30k"], help="(default: both)")
    parser.add_argument("--data-dir", help="folder with a local copy of multi30k; without it the text is downloaded")
    parser.add_argument("--sentences", type=at_least_one, default=1000, help="training pairs of a pass (default: %(default)s)")
    tokens = "batch sizes in tokens, padding counted (default: 1000 4000)"
    parser.add_argument("--max-tokens", type=at_least_one, nargs="+", default=[1000, 4000], metavar="TOKENS", help=tokens)
    parser.add_argument("--rounds", type=at_least_one, default=5, help="timed passes of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()

    set_threads(options.threads)
    load = load_average()
    amount = {"sentences": options.sentences, "max_tokens": options.max_tokens, "rounds": options.rounds}
    try:
        found = [each for size in options.sizes for each in measure(size, options.data_dir, **amount)]
    except ValueError as error:
        print(f"importance_cost: error: {error}", file=sys.stderr)
        return 1
    rows = []
    for each in found:
        for form in FORMS:
            cost = each["ratio"][form]
            between = f"{cost['lowest']:.3f} to {cost['highest']:.3f}"
            times = [f"{each['plain_s']['median']:.2f}", f"{each['importance_s'][form]['median']:.2f}", f"{cost['median']:.3f}"]
            verdict = "yes" if cost["median"] <= AIM else "no"
            rows.append([each["size"], each["max_tokens"], each["batches"], form, *times, between, verdict])
    show(["size", "tokens/batch", "batches", "form", "plain s", "importance s", "ratio", "lowest to highest", f"at most {AIM}"], rows)
    answer = {"aim": AIM, "measured": found, "rounds": options.rounds, "load_average_before": load}
    record(options.out, "importance_cost", QUESTION, answer, precision="32", seed=SEED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
