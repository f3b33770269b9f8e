"""CTranslate2: translation in C++ on a CPU, in fp32 or int8.   https://opennmt.net/CTranslate2; read in its
sources, tried with 4.8.5.

A decoder or encoder of CTranslate2 has one number of heads (self- and cross-attention of a decoder share it),
but every attention has a head width of its own. So an attention is filled up to the largest number in its
stack with heads of zeros: their values are 0, W_O's columns too, and nothing is added. One that lost all its
heads gets heads of width 1.

Its beam search is ours where it counts: 2k candidates a step, an end counts among the k best, a sentence is
finished when k hypotheses have ended, and log p / n ** length_penalty ranks them, the end counted in n. Five
things differ, and how they are met:
- all ends of a sentence's last step are kept and the k best of them returned, where ours stops at k: a better
  n-best list, the same best;
- padding and beginning can be produced: a sentence that has one among its hypotheses is searched again
  without them;
- one length limit a batch: it is the longest, and a sentence that goes beyond its own is searched again, up
  to the last piece before its end is forced;
- forced first pieces count in no length: hypotheses are ranked here, with them;
- sinusoids end, at 1,024 positions or `max_positions` if that is more: a longer source is refused, and no
  translation gets longer.
So a beam may take another way than ours in three places: where padding was in it and left no hypothesis;
without padding, as the softmax is over the other pieces then; at the limit, as the rows are not known that
would have replaced hypotheses which end one piece before it. A trained model is hardly ever there. Greedy
search has no such places, and the probabilities that are returned are always ours. Letters: D model width, H
heads, K head width.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ctranslate2
import numpy as np
import torch
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import Tensor, nn

from headgates.bridges.formats import read_about
from headgates.configs.schema import ModelConfig, read_search
from headgates.data.vocab import Vocabulary, load_vocabs
from headgates.gates import find_sites
from headgates.models.attention import MultiHeadAttention
from headgates.models.checkpoint import special_tokens
from headgates.models.line_translator import LineTranslator, Translation
from headgates.models.positions import sinusoids
from headgates.models.search import Hypothesis
from headgates.models.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer
from headgates.models.translator import Translator, check_size

SINUSOIDS = 1024  # rows of their table; learned positions have their own
LOWEST = -1e30  # CTranslate2 rules hypotheses out with the lowest float; below this a score is none
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "swish": common_spec.Activation.SWISH,
}
NO_PENALTY = 1e-9  # at 0 exactly it stops by another rule; n ** 1e-9 is 1 in fp32


def write(translator: Translator, folder: Path) -> None:
    """model.bin (fp32; int8 is made from it when it is opened), config.json and the vocabularies as
    CTranslate2 reads them, into `folder`.

    Plain CTranslate2 runs it: sources are the tokenizer's pieces without their end, unless the two sides have
    different ends, and forced first pieces are its target_prefix. Raises ValueError at a model with gates, or
    at vocabularies that do
    not fit it."""
    model = translator.model
    if any(getattr(module, "gate", None) is not None for module in find_sites(model).values()):
        raise ValueError(
            "the model has gates; remove its closed heads first (gates.remove, or "
            "bridges.formats.without_gates)"
        )
    source, target = piece_names(translator.source_vocab), piece_names(translator.target_vocab)
    specials = model.target_specials
    beginning, end, unknown = target[specials.beginning], target[specials.end], target[specials.unknown]
    if source[model.source_specials.unknown] != unknown:
        raise ValueError(
            f"the vocabularies name the unknown piece {source[model.source_specials.unknown]!r} and "
            f"{unknown!r}; CTranslate2 has one name "
            "for both"
        )
    spec = specification(model)
    config = spec.config
    config.bos_token, config.eos_token, config.unk_token = beginning, end, unknown
    config.decoder_start_token, config.add_source_eos = beginning, source[model.source_specials.end] == end
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.validate()
    spec.optimize()  # tied tables are stored once
    spec.save(str(folder))


def piece_names(vocab: Vocabulary) -> list[str]:
    """Return the piece of every id. Raises ValueError if two are alike, because CTranslate2 knows tokens by
    their names."""
    pieces = vocab.pieces(range(len(vocab)))
    if len(set(pieces)) < len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if piece in pieces[:i])
        raise ValueError(f"the vocabulary has the piece {twice!r} twice; CTranslate2 cannot tell them apart")
    return pieces


def specification(model: Transformer) -> Any:
    """Return a `TransformerSpec` with the weights of the model."""
    config = model.config
    if config.decoder_mixer != "attention":
        raise ValueError(
            f"CTranslate2 has no decoder with decoder_mixer {config.decoder_mixer!r}; take --to torch, "
            "onnx or marian"
        )
    encoder_layers = [cast(EncoderLayer, layer) for layer in model.encoder.layers]
    decoder_layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
    # at least one head: CTranslate2 divides by their number
    encoder_heads = max(1, *(layer.self_attention.heads for layer in encoder_layers))
    decoder_heads = max(
        1, *(max(layer.self_attention.heads, layer.cross_attention.heads) for layer in decoder_layers)
    )
    options = {
        "activation": ACTIVATIONS[config.activation],
        "layernorm_embedding": config.embedding_norm,
        "head_dim": 1,
    }
    norms = {
        stack: {"pre_norm": config.norm_of(stack) == "pre", "no_final_norm": not config.has_final_norm(stack)}
        for stack in ("encoder", "decoder")
    }
    encoder = transformer_spec.TransformerEncoderSpec(
        config.encoder_layers, encoder_heads, **options, **norms["encoder"]
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers, decoder_heads, **options, **norms["decoder"]
    )
    for spec, here in zip(encoder.layer, encoder_layers, strict=True):
        fill_attention(spec.self_attention, here.self_attention, here.self_residual.norm, encoder_heads)
        fill_feed_forward(spec.ffn, here.feed_forward, here.feed_residual.norm)
    for spec, layer in zip(decoder.layer, decoder_layers, strict=True):
        fill_attention(spec.self_attention, layer.self_attention, layer.self_residual.norm, decoder_heads)
        fill_attention(spec.attention, layer.cross_attention, layer.cross_residual.norm, decoder_heads)
        fill_feed_forward(spec.ffn, layer.feed_forward, layer.feed_residual.norm)
    encoder.scale_embeddings = decoder.scale_embeddings = config.embedding_scale  # by sqrt(D)
    encoder.embeddings[0].weight = to_numpy(model.source_embedding.weight)
    decoder.embeddings.weight = to_numpy(model.target_embedding.weight)
    decoder.projection.weight = to_numpy(model.output.weight)
    if config.output_bias:
        decoder.projection.bias = to_numpy(model.output.bias)
    for stack, spec, ours in (("encoder", encoder, model.encoder), ("decoder", decoder, model.decoder)):
        if config.has_final_norm(stack):
            fill_norm(spec.layer_norm, cast(nn.LayerNorm, ours.norm))
    if config.embedding_norm:
        fill_norm(encoder.layernorm_embedding, cast(nn.LayerNorm, model.source_norm))
        fill_norm(decoder.layernorm_embedding, cast(nn.LayerNorm, model.target_norm))
    if config.positions == "learned":
        encoder.position_encodings.encodings = to_numpy(model.source_positions.weight)
        decoder.position_encodings.encodings = to_numpy(model.target_positions.weight)
    else:  # CTranslate2's own sinusoids begin at 1, have other frequencies, and all sines before all cosines
        table = to_numpy(sinusoids(config, positions(config)))
        encoder.position_encodings.encodings = decoder.position_encodings.encodings = table
    whole = transformer_spec.TransformerSpec(encoder, decoder)
    (whole.config.layer_norm_epsilon,) = {
        module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)
    }
    return whole


def positions(config: ModelConfig) -> int:
    """Return how many tokens a sequence may have."""
    return config.max_positions if config.positions == "learned" else max(config.max_positions, SINUSOIDS)


def fill_attention(
    spec: attention_spec.MultiHeadAttentionSpec, attention: MultiHeadAttention, norm: nn.LayerNorm, heads: int
) -> None:
    """Copy the heads of an attention into `spec`, and fill it with heads of zeros up to `heads`."""
    width = attention.head_width if attention.heads else 1
    q, k, v = (
        padded(linear, heads * width) for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    fused = (
        [[q, k, v]] if len(spec.linear) == 2 else [[q], [k, v]]
    )  # self-attention projects all three at once
    for linear, parts in zip(spec.linear, fused, strict=False):
        linear.weight, linear.bias = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    weight = to_numpy(attention.out_proj.weight)  # (D, H * K)
    spec.linear[-1].weight = np.pad(weight, ((0, 0), (0, heads * width - weight.shape[1])))
    spec.linear[-1].bias = to_numpy(attention.out_proj.bias)
    spec.head_dim = np.int32(width)
    fill_norm(spec.layer_norm, norm)


def padded(linear: nn.Linear, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight and bias of a projection into heads, filled with rows of zeros up to `rows`."""
    missing = rows - linear.out_features
    return np.pad(to_numpy(linear.weight), ((0, missing), (0, 0))), np.pad(
        to_numpy(linear.bias), (0, missing)
    )


def fill_feed_forward(
    spec: transformer_spec.FeedForwardSpec, feed_forward: FeedForward, norm: nn.LayerNorm
) -> None:
    for linear, ours in ((spec.linear_0, feed_forward.inner), (spec.linear_1, feed_forward.outer)):
        linear.weight, linear.bias = to_numpy(ours.weight), to_numpy(ours.bias)
    fill_norm(spec.layer_norm, norm)


def fill_norm(spec: common_spec.LayerNormSpec, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = to_numpy(norm.weight), to_numpy(norm.bias)


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def open(folder: Path, threads: int = 0, *, compute_type: str = "float32") -> "CTranslate2Model":
    """The model of a folder that holds what `write` wrote, its vocabularies and export.json.

    threads: 0 for as many as torch has. compute_type: float32, or int8, which quantises embeddings and weight
    matrices of any size as they are loaded, each row with a scale of its own; biases, norms and positions
    stay fp32. On the toy and Tatoeba models log-probabilities of tokens moved by 0.002 and 0.011 nats on
    average, 0.2 at most. Raises
    ValueError at a folder or compute
    type that cannot be opened."""
    return CTranslate2Model(folder, threads, compute_type)


class CTranslate2Model(LineTranslator):
    """The model of an exported folder; it has the same methods as `Translator`."""

    def __init__(self, folder: Path, threads: int, compute_type: str):
        supported = sorted(ctranslate2.get_supported_compute_types("cpu"))
        if compute_type not in supported:
            raise ValueError(
                f"CTranslate2 has no compute type {compute_type!r} on this CPU; expected one of "
                f"{', '.join(supported)}"
            )
        about = read_about(folder)
        try:
            self.search, self.positions = (
                read_search(about["search"], folder),
                positions(ModelConfig(**about["architecture"]["model"])),
            )
            specials = special_tokens(about["architecture"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"cannot read the export.json of {folder} ({error}); export the run again with this version"
            ) from error
        self.source_vocab, self.target_vocab = load_vocabs(folder, *specials)
        check_size("source", about["architecture"]["source_vocab"], self.source_vocab)
        check_size("target", about["architecture"]["target_vocab"], self.target_vocab)
        self.end, self.never_produced = specials[1].end, specials[1].never_produced
        self.source_names, self.target_names = piece_names(self.source_vocab), piece_names(self.target_vocab)
        self.target_ids = {name: i for i, name in enumerate(self.target_names)}
        self.forced = list(specials[1].forced)
        source_end = self.source_names[specials[0].end]  # CTranslate2 adds the target's
        self.source_suffix = [] if source_end == self.target_names[self.end] else [source_end]
        try:
            self.translator = ctranslate2.Translator(
                str(folder),
                device="cpu",
                compute_type=compute_type,
                intra_threads=threads or torch.get_num_threads(),
            )
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{folder} is not a whole CTranslate2 model ({error}); export the run again"
            ) from error

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        """As in `LineTranslator`; raises ValueError also at a line that is longer than the positions of the
        model."""
        beam, penalty = self.search_options(beam, length_penalty)
        k = min(beam, len(self.target_names) - 1)
        ids = self.source_vocab.encode(list(lines))
        self.check_lengths(ids, "source")
        sources = self.source_pieces(ids)
        lengths = [len(row) for row in ids]
        limits = self.length_limits(lengths)
        results: list[list[Hypothesis]] = [[] for _ in ids]
        again: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for chosen in self.search_batches(lengths, k):
            found = self.run([sources[i] for i in chosen], k, penalty, max(limits[i] for i in chosen))
            for i, hypotheses in zip(chosen, found, strict=True):
                results[i] = [one for one, _ in hypotheses]
                too_long = any(not ended or len(one.ids) >= limits[i] for one, ended in hypotheses)
                if too_long or any(self.ruled_out(one.ids) for one in results[i]):
                    again[limits[i], too_long].append(i)
        for (limit, too_long), group in again.items():
            for chosen in self.search_batches([lengths[i] for i in group], k):
                rows = [group[j] for j in chosen]
                for i, best in zip(
                    rows, self.search_again([ids[i] for i in rows], k, penalty, limit, too_long), strict=True
                ):
                    results[i] = best
        texts = iter(self.target_vocab.decode([one.ids for best in results for one in best]))
        return [
            [Translation(next(texts), one.log_prob, one.score, len(one.ids) + 1) for one in best]
            or [Translation("", 0.0, 0.0, 0)]
            for best in results
        ]

    def run(
        self,
        sources: list[list[str]],
        k: int,
        length_penalty: float,
        limit: int,
        *,
        patience: int = 1,
        suppress: bool = False,
    ) -> list[list[tuple[Hypothesis, bool]]]:
        """Return CTranslate2's best k * patience hypotheses of every source, best first, and whether each has
        ended within `limit` tokens.

        The score of a hypothesis that has not ended is without its end. Raises ValueError if no hypothesis
        has a score."""
        forced = len(self.forced)
        penalty = NO_PENALTY if forced else max(length_penalty, NO_PENALTY)
        found = self.translator.translate_batch(
            sources,
            target_prefix=[[self.target_names[i] for i in self.forced]] * len(sources) if forced else None,
            beam_size=k,
            num_hypotheses=k * patience,
            patience=patience,
            length_penalty=penalty,
            max_input_length=0,
            max_decoding_length=limit,  # the prefix counted
            min_decoding_length=0,
            return_end_token=True,
            return_scores=True,
            suppress_sequences=[[self.target_names[token]] for token in self.never_produced]
            if suppress
            else None,
        )
        results = []
        for result in found:
            hypotheses = []
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self.target_ids[token] for token in tokens]
                if score > LOWEST:
                    ended = ids[-1] == self.end
                    log_prob = score if forced else score * len(ids) ** length_penalty
                    hypotheses.append(
                        (
                            Hypothesis(
                                ids[:-1] if ended else ids, log_prob, log_prob / len(ids) ** length_penalty
                            ),
                            ended,
                        )
                    )
            if not hypotheses:
                raise ValueError(
                    "the model gives no finite probability to any next token; its weights hold NaN, so "
                    "export another model"
                )
            results.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis[0].score))
        return results

    def source_pieces(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """The pieces of each source, with its end where CTranslate2 would add another; an empty source stays
        empty."""
        return [[*(self.source_names[i] for i in row), *self.source_suffix] if row else [] for row in ids]

    def search_again(
        self, source_ids: list[list[int]], k: int, length_penalty: float, limit: int, cut: bool
    ) -> list[list[Hypothesis]]:
        """Return the k best hypotheses of every source without padding and beginning; those that have not
        ended before `limit` end there.

        cut: whether the sources are known to reach the limit; then all hypotheses that have ended before it
        are compared."""
        sources = self.source_pieces(source_ids)
        patience = (
            2 if cut and k > 1 else 1
        )  # fewer than k have ended when the limit is reached, so these are all
        found: list[list[list[int]]] = [[list(self.forced)] for _ in sources]
        if limit - 1 > len(self.forced):
            options: dict[str, Any] = {
                "length_penalty": length_penalty,
                "limit": limit - 1,
                "patience": patience,
            }
            best = self.run(sources, k, **options, suppress=not cut)
            bad = [
                i
                for i, hypotheses in enumerate(best)
                if any(self.ruled_out(one.ids) for one, _ in hypotheses)
            ]
            for i, hypotheses in zip(
                bad,
                self.run([sources[i] for i in bad], k, **options, suppress=True) if bad else [],
                strict=True,
            ):
                best[i] = hypotheses
            found = [[one.ids for one, _ in hypotheses] for hypotheses in best]
        pairs = [(row, ids) for row, candidates in zip(source_ids, found, strict=True) for ids in candidates]
        log_probs = iter(self.log_probs([row for row, _ in pairs], [ids for _, ids in pairs]))
        results = []
        for candidates in found:
            totals = [(ids, sum(next(log_probs))) for ids in candidates]
            ended = [
                Hypothesis(ids, total, total / (len(ids) + 1) ** length_penalty) for ids, total in totals
            ]
            results.append(sorted(ended, key=lambda one: -one.score)[:k])
        return results

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """As in `LineTranslator`; raises ValueError also at a line that is longer than the positions of the
        model."""
        source_ids, target_ids = self.encode_pairs(sources, targets)
        self.check_lengths(source_ids, "source")
        self.check_lengths(target_ids, "target")
        return self.log_probs(source_ids, target_ids)

    def log_probs(
        self, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log probabilities of every target's ids and its end; those of forced pieces are left
        out."""
        results: list[list[float]] = [[] for _ in source_ids]
        for chosen in self.search_batches(
            [max(len(s), len(t)) + 1 for s, t in zip(source_ids, target_ids, strict=True)], 1
        ):
            found = self.translator.score_batch(
                self.source_pieces([source_ids[row] for row in chosen]),
                [[self.target_names[i] for i in target_ids[row]] for row in chosen],
                max_input_length=0,
            )
            for row, scored in zip(chosen, found, strict=True):
                results[row] = list(scored.log_probs)[len(self.forced) :]
        return results

    @property
    def max_positions(self) -> int:
        """Tokens that a line may have, the end counted."""
        return self.positions

    def length_limits(self, lengths: Sequence[int]) -> list[int]:
        """Return the longest target, end included, of sources of so many pieces, as in models.search and
        within the positions."""
        limits = (torch.tensor(lengths) * self.search.max_ratio).long() + self.search.max_extra
        return limits.clamp(len(self.forced) + 1, self.positions).tolist()

    def check_lengths(self, ids: Sequence[Sequence[int]], side: str) -> None:
        for line, row in enumerate(ids, start=1):
            if len(row) >= self.positions:
                raise ValueError(
                    f"line {line}: a {side} of {len(row) + 1} tokens is longer than the {self.positions} "
                    "positions that were exported; "
                    "split it, or train with a larger model.max_positions"
                )

    def ruled_out(self, ids: Sequence[int]) -> bool:
        """Whether a hypothesis holds padding or beginning, which CTranslate2 does not rule out unless asked
        to."""
        return any(token in ids for token in self.never_produced)
