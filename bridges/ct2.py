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

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
import torch.nn.functional as F
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import Tensor, nn

from headgates.bridges.foreign import STACKS, position_table, table_length
from headgates.bridges.formats import sized_vocabs
from headgates.data.text import reworded
from headgates.data.vocab import Vocabulary
from headgates.gates import find_sites
from headgates.models.attention import MultiHeadAttention
from headgates.models.line_translator import LineTranslator
from headgates.models.search import Hypothesis
from headgates.models.transformer import DecoderLayer, EncoderLayer, Transformer
from headgates.models.translator import Translator

LOWEST = -1e30  # CTranslate2 rules hypotheses out with the lowest float; below this a score is none
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
    options = {
        "activation": getattr(common_spec.Activation, config.activation.upper()),
        "layernorm_embedding": config.embedding_norm,
        "head_dim": 1,
    }
    specs = []
    for side, stack, kind in (
        ("source", model.encoder, transformer_spec.TransformerEncoderSpec),
        ("target", model.decoder, transformer_spec.TransformerDecoderSpec),
    ):
        # at least one head: CTranslate2 divides by their number
        heads = max(1, *(each.heads for layer in stack.layers for each in attentions(layer).values()))
        spec = kind(
            len(stack.layers),
            heads,
            **options,
            pre_norm=config.norm_of(STACKS[side]) == "pre",
            no_final_norm=isinstance(stack.norm, nn.Identity),
        )
        for own, layer in zip(spec.layer, stack.layers, strict=True):
            for name, attention in attentions(layer).items():
                fill_attention(getattr(own, name), attention, heads)
            fill(own.self_attention.layer_norm, layer.self_residual.norm)
            if isinstance(layer, DecoderLayer):
                fill(own.attention.layer_norm, layer.cross_residual.norm)
            fill(own.ffn.layer_norm, layer.feed_residual.norm)
            fill(own.ffn.linear_0, layer.feed_forward.inner)
            fill(own.ffn.linear_1, layer.feed_forward.outer)
        spec.scale_embeddings = config.embedding_scale  # by sqrt(D)
        table = spec.embeddings[0] if side == "source" else spec.embeddings
        fill(table, getattr(model, f"{side}_embedding"))
        # CTranslate2's own sinusoids begin at 1, have other frequencies, and all sines before all cosines
        spec.position_encodings.encodings = to_numpy(position_table(model, side))
        if not isinstance(stack.norm, nn.Identity):
            fill(spec.layer_norm, stack.norm)
        if config.embedding_norm:
            fill(spec.layernorm_embedding, getattr(model, f"{side}_norm"))
        specs.append(spec)
    fill(specs[1].projection, model.output)
    whole = transformer_spec.TransformerSpec(*specs)
    whole.config.layer_norm_epsilon = config.norm_eps
    return whole


def attentions(layer: EncoderLayer | DecoderLayer) -> dict[str, MultiHeadAttention]:
    """The attentions of a layer by their names in CTranslate2."""
    found = {"self_attention": layer.self_attention}
    return found | {"attention": layer.cross_attention} if isinstance(layer, DecoderLayer) else found


def fill_attention(
    spec: attention_spec.MultiHeadAttentionSpec, attention: MultiHeadAttention, heads: int
) -> None:
    """Copy the heads of an attention into `spec`, and fill it with heads of zeros up to `heads`."""
    width = attention.head_width if attention.heads else 1
    missing = heads * width - attention.q_proj.out_features
    q, k, v = (
        (F.pad(linear.weight, (0, 0, 0, missing)), F.pad(linear.bias, (0, missing)))
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    # self-attention projects all three at once
    fused = [[q, k, v]] if len(spec.linear) == 2 else [[q], [k, v]]
    for linear, parts in zip(spec.linear, fused, strict=False):
        linear.weight, linear.bias = (to_numpy(torch.cat(each)) for each in zip(*parts, strict=True))
    fill(spec.linear[-1], attention.out_proj)
    spec.linear[-1].weight = to_numpy(F.pad(attention.out_proj.weight, (0, missing)))  # (D, H * K)
    spec.head_dim = np.int32(width)


def fill(spec: Any, module: nn.Module) -> None:
    """Copy the weight and bias of a linear map, an embedding or a norm."""
    names = ("gamma", "beta") if isinstance(module, nn.LayerNorm) else ("weight", "bias")
    for name, (_, tensor) in zip(names, module.named_parameters(), strict=False):
        setattr(spec, name, to_numpy(tensor))


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


class CTranslate2Model(LineTranslator):
    """The model of a folder that holds what `write` wrote, its vocabularies and export.json; it has the same
    methods as `Translator`.

    compute_type: float32, or int8, which quantises embeddings and weight matrices of any size as they are
    loaded, each row with a scale of its own; biases, norms and positions stay fp32. On the toy and Tatoeba
    models log-probabilities of tokens moved by 0.002 and 0.011 nats on average, 0.2 at most. Raises
    ValueError at a folder or compute type that cannot be opened."""

    def __init__(self, folder: Path, shape: Transformer, *, compute_type: str = "float32"):
        supported = sorted(ctranslate2.get_supported_compute_types("cpu"))
        if compute_type not in supported:
            raise ValueError(
                f"CTranslate2 has no compute type {compute_type!r} on this CPU; expected one of "
                f"{', '.join(supported)}"
            )
        self.max_positions, specials = table_length(shape.config), shape.target_specials
        self.source_vocab, self.target_vocab = sized_vocabs(folder, shape)
        self.end, self.never_produced, self.forced = (
            specials.end,
            specials.never_produced,
            list(specials.forced),
        )
        self.source_names, self.target_names = piece_names(self.source_vocab), piece_names(self.target_vocab)
        self.target_ids = {name: i for i, name in enumerate(self.target_names)}
        source_end = self.source_names[shape.source_specials.end]  # CTranslate2 adds the target's
        self.source_suffix = [] if source_end == self.target_names[self.end] else [source_end]
        with reworded(f"{folder} is not a whole CTranslate2 model", "export the run again"):
            self.translator = ctranslate2.Translator(
                str(folder),
                device="cpu",
                compute_type=compute_type,
                intra_threads=torch.get_num_threads(),
            )

    def search_batch(
        self, sources: list[list[int]], beam: int, length_penalty: float
    ) -> list[list[Hypothesis]]:
        k, least = min(beam, len(self.target_names) - 1), len(self.forced) + 1
        lengths = torch.tensor(list(map(len, sources)))
        longest = (lengths * self.search.max_ratio).long() + self.search.max_extra  # as `length_limits`
        limits = longest.clamp(least, self.max_positions).tolist()
        found = self.run(self.source_pieces(sources), k, length_penalty, max(limits))
        results = []
        for ids, n_best, limit in zip(sources, found, limits, strict=True):
            too_long = any(not ended or len(one.ids) >= limit for one, ended in n_best)
            if too_long or self.ruled_out(n_best):
                results.append(self.search_again(ids, k, length_penalty, limit, too_long))
            else:
                results.append([one for one, _ in n_best])
        return results

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
        forced = [self.target_names[i] for i in self.forced]
        penalty = NO_PENALTY if forced else max(length_penalty, NO_PENALTY)
        found = self.translator.translate_batch(
            sources,
            target_prefix=[forced] * len(sources) if forced else None,
            beam_size=k,
            num_hypotheses=k * patience,
            patience=patience,
            length_penalty=penalty,
            max_input_length=0,
            max_decoding_length=limit,  # the prefix counted
            min_decoding_length=0,
            return_end_token=True,
            return_scores=True,
            suppress_sequences=[[self.target_names[i]] for i in self.never_produced] if suppress else None,
        )
        results = []
        for result in found:
            hypotheses = []
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                if score > LOWEST:
                    ids = [self.target_ids[token] for token in tokens]
                    ended = ids[-1] == self.end
                    log_prob = score if forced else score * len(ids) ** length_penalty
                    one = Hypothesis(ids[: len(ids) - ended], log_prob, log_prob / len(ids) ** length_penalty)
                    hypotheses.append((one, ended))
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
        self, ids: list[int], k: int, length_penalty: float, limit: int, cut: bool
    ) -> list[Hypothesis]:
        """Return the k best hypotheses of a source without padding and beginning; those that have not ended
        before `limit` end there.

        cut: whether the source is known to reach the limit; then all hypotheses that have ended before it are
        compared."""
        candidates = [self.forced]
        if limit - 1 > len(self.forced):
            # fewer than k have ended when the limit is reached, so these are all
            patience = 2 if cut and k > 1 else 1
            search = partial(
                self.run, self.source_pieces([ids]), k, length_penalty, limit - 1, patience=patience
            )
            (best,) = search(suppress=not cut)
            if self.ruled_out(best):
                (best,) = search(suppress=True)
            candidates = [one.ids for one, _ in best]
        totals = map(sum, self.log_probs([ids] * len(candidates), candidates))
        ended = [
            Hypothesis(own, total, total / (len(own) + 1) ** length_penalty)
            for own, total in zip(candidates, totals, strict=True)
        ]
        return sorted(ended, key=lambda one: -one.score)[:k]

    def score_batch(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        found = self.translator.score_batch(
            self.source_pieces(sources),
            [[self.target_names[i] for i in ids] for ids in targets],
            max_input_length=0,
        )
        return [list(scored.log_probs) for scored in found]

    def ruled_out(self, n_best: Sequence[tuple[Hypothesis, bool]]) -> bool:
        """Whether a hypothesis holds padding or beginning, which CTranslate2 does not rule out unless asked
        to."""
        return any(set(self.never_produced) & set(one.ids) for one, _ in n_best)


open = CTranslate2Model
