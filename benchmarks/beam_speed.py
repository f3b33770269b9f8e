"""How fast is beam search?   Sentences per second against the same search without kept keys and values, and against CTranslate2 in fp32.

The aims: at least 2 times the uncached loop, at least half of CTranslate2. The uncached loop is our own beam search over a model that runs
its whole decoder again at every step, so it too drops finished sentences and sorts by length. Each has its best batch size of those tried.
The test set is cut into parts; all run in turns on each, with the same number of threads.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speed.measure import alternate, arguments, at_least_one, load_average, ratio, record, set_threads, show, spread

if TYPE_CHECKING:
    from torch import Tensor

    from models.line_translator import LineTranslator
    from models.transformer import Transformer
    from models.translator import Translator

QUESTION = "beam search, fp32: sentences per second over those of an uncached loop (at least 2) and of CTranslate2 (at least 0.5)"
AIMS = {"uncached": 2.0, "ctranslate2": 0.5}
BATCH_TOKENS = (2_000, 4_000, 8_000, 16_000, 32_000)  # padded source pieces times beam


@dataclass
class Prefixes:
    """The state of the uncached loop: the memory of each remaining sentence and the tokens of each row so far."""

    memory: "Tensor"  # (B, S, D)
    bias: "Tensor"  # (B, 1, 1, S)
    ids: "Tensor"  # (N, length)
    sentences: "Tensor"  # (B,)

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def select(self, rows: "Tensor", sentences: "Tensor | None" = None) -> None:
        self.ids = self.ids[rows]
        if sentences is not None:
            self.memory, self.bias, self.sentences = self.memory[sentences], self.bias[sentences], self.sentences[sentences]


class Uncached:
    """A Transformer whose every step runs the decoder over all tokens so far, cross-attention's keys and values included."""

    def __init__(self, model: "Transformer"):
        self.model, self.config, self.target_vocab = model, model.config, model.target_vocab
        self.source_specials, self.target_specials = model.source_specials, model.target_specials

    def start(self, source: "Tensor", beam: int = 1) -> Prefixes:
        import torch

        memory, bias = self.model.encode(source)
        return Prefixes(memory, bias, source.new_empty(len(source) * beam, 0), torch.arange(len(source)))

    def step(self, ids: "Tensor", state: Prefixes) -> "Tensor":
        import torch

        state.ids = torch.cat([state.ids, ids[:, None]], dim=1)
        beams = len(state.ids) // len(state.sentences)
        memory, bias = state.memory.repeat_interleave(beams, 0), state.bias.repeat_interleave(beams, 0)
        return self.model.output(self.model.decode(memory, bias, state.ids)[:, -1])


def uncached(translator: "Translator") -> Callable[[Sequence[str], int], list[str]]:
    """Translation of lines with a beam by the uncached loop, in the translator's own batches."""
    import torch

    from data.batch import pad
    from models.search import beam_search

    @torch.inference_mode()
    def translate(lines: Sequence[str], beam: int) -> list[str]:
        search, ids = translator.search, translator.encode(lines)
        found = [""] * len(lines)
        for chosen in translator.search_batches([len(sentence) for sentence in ids], beam):
            source = pad([ids[i] for i in chosen], translator.model.source_specials, end=True)
            options: dict[str, Any] = {name: getattr(search, name) for name in ("length_penalty", "max_ratio", "max_extra")}
            best = [each[0].ids for each in beam_search(Uncached(translator.model), source, beam=beam, **options)]
            for i, text in zip(chosen, translator.target_vocab.decode(best), strict=True):
                found[i] = text
        return found

    return translate


def with_batch(system: "LineTranslator", tokens: int) -> None:
    system.search = replace(system.search, batch_tokens=tokens)


def best_batch(system: "LineTranslator", translate: Callable[[Sequence[str]], list[str]], lines: Sequence[str]) -> dict[int, float]:
    """Seconds at each batch size, the better of two; the best is left set."""
    seconds = {}
    for tokens in BATCH_TOKENS:
        with_batch(system, tokens)
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            translate(lines)
            times.append(time.perf_counter() - begin)
        seconds[tokens] = min(times)
    with_batch(system, min(seconds, key=lambda tokens: seconds[tokens]))
    return seconds


def measure(dense: "Translator", peer: "LineTranslator", parts: Sequence[Sequence[str]], beam: int) -> dict[str, Any]:
    """Seconds of the three on every part, their ratios, and how many lines they translate as we do."""
    from models.translator import Translator

    slow = Translator(dense.model, dense.source_vocab, dense.target_vocab, dense.search)
    plain = uncached(slow)
    systems: dict[str, tuple[Any, Callable[[Sequence[str]], list[str]]]] = {
        "ours": (dense, lambda lines: dense.translate(lines, beam=beam)),
        "uncached": (slow, lambda lines: plain(lines, beam)),
        "ctranslate2": (peer, lambda lines: peer.translate(lines, beam=beam)),
    }
    batches = {name: best_batch(system, translate, parts[0]) for name, (system, translate) in systems.items()}
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    lines_alike = dict.fromkeys(AIMS, 0)
    for number, lines in enumerate(parts):
        found: dict[str, list[str]] = {}

        def block(name: str, lines: Sequence[str] = lines, found: dict[str, list[str]] = found) -> Callable[[], None]:
            def run() -> None:
                found[name] = systems[name][1](lines)

            return run

        order = list(systems) if number % 2 == 0 else list(systems)[::-1]
        for name, (once,) in alternate({name: block(name) for name in order}, rounds=1, warmup=1 if number == 0 else 0).items():
            seconds[name].append(once)
        for name in AIMS:
            lines_alike[name] += sum(a == b for a, b in zip(found["ours"], found[name], strict=True))
        print(f"part {number + 1} of {len(parts)}: " + ", ".join(f"{name} {seconds[name][-1]:.1f} s" for name in systems), flush=True)
    sizes = [len(part) for part in parts]
    return {
        "sentences": sum(sizes),
        "beam": beam,
        "batch_tokens": {name: min(tried, key=lambda tokens: tried[tokens]) for name, tried in batches.items()},
        "sentences_per_second": {name: spread([n / s for n, s in zip(sizes, times, strict=True)]) for name, times in seconds.items()},
        "over": {name: ratio(seconds[name], seconds["ours"]) for name in AIMS},
        "lines_alike": lines_alike,
    }


def main() -> int:
    parser = arguments("beam_speed", __doc__)
    parser.add_argument("run", metavar="RUN", help="a finished run folder; its base is measured")
    parser.add_argument("--data-dir", help="folder with a local copy of the run's corpus")
    parser.add_argument("--beam", type=at_least_one, default=5, help="beam width (default: %(default)s)")
    parser.add_argument("--parts", type=at_least_one, default=5, help="parts of the test set (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=0, help="test sentences, 0 for all (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()

    from configs.prune import PruneConfig
    from models.formats import export, open_exported
    from pruning.dense_model import DenseModel

    set_threads(options.threads)
    load = load_average()
    try:
        config = PruneConfig(source=options.run, data_dir=options.data_dir, test_sentences=options.sentences, threads=options.threads)
        subject = DenseModel.open(config)
        lines, references = subject.test
        if options.parts > len(lines):
            raise ValueError(f"--parts: expected at most the {len(lines)} test sentences, got {options.parts}")
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder) / "ct2"
            export(subject.translator, "ct2", exported, lines=lines[:50], references=references[:50], facts=subject.facts)
            peer = open_exported(exported, threads=options.threads, compute_type="float32")
            found = measure(subject.translator, peer, [lines[part :: options.parts] for part in range(options.parts)], options.beam)
    except ValueError as error:
        print(f"beam_speed: error: {error}", file=sys.stderr)
        return 1
    rows = []
    for name, speed in found["sentences_per_second"].items():
        over = found["over"].get(name)
        between = f"{over['median']:.2f} ({over['lowest']:.2f} to {over['highest']:.2f})" if over else ""
        rows.append([name, f"{speed['median']:.0f}", found["batch_tokens"][name], between, found["lines_alike"].get(name, "")])
    show(["system", "sentences/s", "batch tokens", "ours over it", f"lines alike of {found['sentences']}"], rows)
    answer = {"aims": AIMS, "run": subject.folder.path.name, **found, "load_average_before": load}
    record(options.out, "beam_speed", QUESTION, answer, precision="32", seed=1, peers=["ctranslate2"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
