"""What a score asks of a model and one of its batches: the loss, the query positions, the largest logits.

Two kinds of batches are known, others bring functions of their own. A mapping of keyword arguments, as
Hugging Face's models take them: `model(**batch)` returns `logits` and, where the batch has
`labels`, their mean loss. And a pair of texts with the attributes source (B, S), target_in and target_out
(B, T), of a model `model(source, target_in)` with `source_specials.padding` and `target_specials.padding`.
Letters: B sentences, L query positions, S source and T target positions, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from inspect import signature
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headgates.gates import HeadSite, find_sites
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.gram import Ranks
from headgates.gates.headmap import check_kinds
from headgates.gates.sites import neurons_left_alone

Loss = Callable[[Any, Any], Tensor]  # (model, batch) -> a scalar, summed over the batch's sentences
Value = Callable[[Any, Any], Tensor]  # (model, batch) -> what is measured, such as a number for each sentence
# (model, site, batch) -> (B, L) bool: positions that count; some functions take None for all of them
Queries = Callable[[Any, HeadSite, Any], Any]
Draw = Callable[[Any, Any, torch.Generator], Any]  # the batch with targets sampled from the model
TopLogits = Callable[[Any, Any], tuple[Tensor, Tensor]]  # (B, T) logits, and (B, T) bool: which there are
A_BATCH = "a batch maps names of the model's arguments to tensors: {'input_ids': ..., 'labels': ...}"
IGNORED = -100  # the label of a position without a loss
SENSED = {"pixel_values", "input_features", "input_values"}  # images and sounds, beside a text or alone
DRAWN_AT_ONCE = (2**24, 2**18)  # probabilities in memory while classes are drawn, on a GPU and on a CPU
# decoders of words whose labels are those of the position itself, as transformers says of them
UNSHIFTED = {"XLNetLMHeadModel", "XLMWithLMHeadModel", "FlaubertWithLMHeadModel"} | {
    f"{name}ForCausalLM"
    for name in (
        *("Bart", "MBart", "Pegasus", "Marian", "PLBart", "Blenderbot", "BlenderbotSmall", "Mvp"),
        *("BigBirdPegasus", "TrOCR", "Whisper", "CpmAnt", "ProphetNet", "Musicgen", "MusicgenMelody"),
    )
}
Item = TypeVar("Item")


def sites_of(model: nn.Module, kinds: Iterable[str] | None) -> dict[HeadSite, nn.Module]:
    """The sites of these kinds (attentions unless named) that have heads. Raises ValueError for an unknown
    kind, and where there is none, with what keeps neurons from being sites."""
    chosen = check_kinds(kinds)
    found = {site: module for site, module in find_sites(model, chosen).items() if site.heads}
    if not found:
        said = neurons_left_alone(model) or "name other kinds"
        raise ValueError(f"the model has no heads of the kinds {', '.join(chosen)}; {said}")
    return found


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, its parameters without gradients; afterwards it is as it was."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with evaluation_mode(model.requires_grad_(False)):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def shared(items: Iterable[Item], ranks: Ranks | None) -> Iterable[Item]:
    """The items of this rank, one of `world` in turns; all where there is one process."""
    return items if ranks is None else islice(items, ranks.rank(), None, ranks.world())


def summed(tensor: Tensor, ranks: Ranks | None) -> Tensor:
    """The sum of all ranks' tensors."""
    return tensor if ranks is None else ranks.all_sum(tensor)


def sentence_means(
    sums: Mapping[HeadSite, Tensor], sentences: Mapping[HeadSite, int], ranks: Ranks | None
) -> dict[HeadSite, Tensor]:
    """The sums of all ranks, divided by their numbers of sentences, or of what else was counted at each site.
    Raises ValueError where there is none."""
    totals = dict(zip(sums, summed(torch.tensor([sentences[site] for site in sums]), ranks), strict=True))
    if not all(totals.values()):
        raise ValueError("a score needs at least one batch of sentence pairs, got none")
    return {site: summed(each, ranks) / totals[site] for site, each in sums.items()}


def is_named(batch: Any) -> bool:
    """Whether a batch is of named arguments, not a pair of texts. Raises ValueError at what is neither."""
    if not (isinstance(batch, Mapping) or hasattr(batch, "target_in")):
        raise ValueError(f"expected batches that are mappings, got a {type(batch).__name__}; {A_BATCH}")
    return isinstance(batch, Mapping)


def target_positions(batch: Any, specials: Any) -> Tensor:
    """(B, T) bool, True at the decoder's positions that are not padding: where its output has a token, and
    those of forced ones, which it reads and is not asked for."""
    real: Tensor = batch.target_out != specials.padding
    real[:, : len(getattr(specials, "forced", ()))] = True
    return real


def query_tokens(model: Any, site: HeadSite, batch: Any) -> Tensor:
    """(B, L) bool, True at the query positions that are not padding."""
    if not is_named(batch):
        if not site.in_decoder:
            return batch.source != model.source_specials.padding
        return target_positions(batch, model.target_specials)
    if (real := named_positions(model, site, batch)) is None:
        raise ValueError(
            f"the batch has {sorted(batch)}, so the positions of {site.name} are not known; expected "
            "attention_mask or input_ids, or give queries=, a function (model, site, batch) -> (B, L) bool"
        )
    return real


def named_positions(model: Any, site: HeadSite, batch: Mapping[str, Any]) -> Tensor | None:
    """(B, L) bool, the positions of the site that are not padding by a batch of Hugging Face's names; of
    choices (B, C, T) each is a row. None where the names do not tell."""
    decoder = site.in_decoder and is_encoder_decoder(model)
    if decoder:
        names = "labels", "decoder_attention_mask", "decoder_input_ids"
        labels, mask, ids = (batch.get(name) for name in names)
        fits = ids is None or labels is None or ids.shape == labels.shape
        if mask is None and labels is not None and labels.dim() > 1 and fits:
            return labels != IGNORED
        if (real := mask_of(batch, "decoder_")) is not None or "input_ids" not in batch:
            return real
    return mask_of(batch, "")  # a classifier's decoder reads the encoder's words again


def mask_of(batch: Mapping[str, Any], of: str) -> Tensor | None:
    """(B, L) bool: the mask of this part of the batch, or True at all its words."""
    ids, embeds = (batch.get(of + name) for name in ("input_ids", "inputs_embeds"))
    words = embeds[..., 0] if ids is None and embeds is not None else ids
    if (mask := batch.get(f"{of}attention_mask")) is not None:
        real: Tensor = mask.bool()
    elif words is not None:
        real = torch.ones_like(words, dtype=torch.bool)
    else:
        return None
    return real.flatten(0, -2) if real.dim() == 3 and ids is not None and ids.dim() == 3 else real


def known_tokens(model: Any, site: HeadSite, batch: Any) -> Tensor | None:
    """`query_tokens` where the batch tells them; None, which stands for all positions, in encoders of images
    and sounds, whose masks are not of the layers' positions, beside such an encoder, in what pools its
    outputs, and in models whose arguments have names of their own."""
    if not isinstance(batch, Mapping):
        return query_tokens(model, site, batch)
    of_words = {"input_ids", "inputs_embeds"} & {*batch}
    reads = site.in_decoder and ("dec-self" in kinds_of(model) or is_encoder_decoder(model))
    if (SENSED & {*batch} or not of_words) and not reads:
        return None
    return (
        query_tokens(model, site, batch) if is_encoder_decoder(model) else named_positions(model, site, batch)
    )


def kinds_of(model: Any) -> set[str]:
    """The kinds of its attentions."""
    return {site.kind for site in find_sites(model)}


def passed(model: Any, batch: Any) -> Any:
    """What the model gives for the batch."""
    return model(**batch) if is_named(batch) else model(batch.source, batch.target_in)


def batch_loss(model: Any, batch: Any) -> Tensor:
    """-log p of the batch's targets, summed over all that have a loss."""
    if is_named(batch) and batch.get("labels") is None:
        raise without_loss(model, batch)
    with summed_ctc(model), losses_in_float32(model):
        output = passed(model, batch)
    if not isinstance(batch, Mapping):
        padding = model.target_specials.padding
        return F.cross_entropy(
            output.float().flatten(0, 1), batch.target_out.flatten(), ignore_index=padding, reduction="sum"
        )
    loss = getattr(output, "loss", None)
    if loss is None or not isinstance(batch["labels"], Tensor):  # such as a list of boxes for each image
        raise without_loss(model, batch)
    counted = count_labels(model, batch["labels"])
    if not counted:
        raise ValueError("all labels of a batch are -100, so it has no loss; leave such batches out")
    return loss if is_ctc(model) else loss * counted


LOSSES = (F.cross_entropy, F.nll_loss, F.binary_cross_entropy_with_logits, F.mse_loss, F.ctc_loss)


class InFloat32(TorchFunctionMode):
    """Meanwhile losses are those of the same logits as floats."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in LOSSES:
            args = [
                each.float() if isinstance(each, Tensor) and each.is_floating_point() else each
                for each in args
            ]
        return function(*args, **(kwargs or {}))


def losses_in_float32(model: nn.Module) -> AbstractContextManager[Any]:
    """A model in half precision rounds its loss to 8 or 11 bits, which is more than most heads are worth."""
    halves = any(each.is_floating_point() and each.dtype.itemsize < 4 for each in model.parameters())
    return InFloat32() if halves else nullcontext()


def is_ctc(model: Any) -> bool:
    """Whether the model's loss is that of CTC, which its configuration says how to reduce."""
    return type(model).__name__.endswith("ForCTC") and hasattr(model.config, "ctc_loss_reduction")


@contextmanager
def summed_ctc(model: Any) -> Iterator[None]:
    """Meanwhile the loss of CTC is summed over the sentences: its mean weighs them by their lengths."""
    before = model.config.ctc_loss_reduction if is_ctc(model) else None
    try:
        if before is not None:
            model.config.ctc_loss_reduction = "sum"
        yield
    finally:
        if before is not None:
            model.config.ctc_loss_reduction = before


def without_loss(model: Any, batch: Mapping[str, Any]) -> ValueError:
    return ValueError(
        f"the loss of {type(model).__name__} is not known for a batch of {sorted(batch)}; add labels to the "
        "batch, or give loss=, a function (model, batch) -> scalar, summed over the batch"
    )


def count_labels(model: Any, labels: Tensor) -> int:
    """The labels that have a loss; models that label each point of an image name the one that has none."""
    ignored = IGNORED
    if labels.dim() == 3:
        ignored = getattr(getattr(model, "config", None), "semantic_loss_ignore_index", IGNORED)
    return int((predicted(model, labels) != ignored).sum())


def predicted(model: Any, labels: Tensor) -> Tensor:
    """The labels that have a loss: a model of the next word has none of the first."""
    return labels[:, 1:] if labels.dim() > 1 and predicts_next(model) else labels


def is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def predicts_next(model: Any) -> bool:
    """Whether the labels of a position are those of the next: of a decoder that gives words, be it beside an
    encoder of images, not of a classifier made of one. A model of transformers says whether it can generate;
    the words of PaliGemma attend to each other both ways, and it does."""
    if callable(can := getattr(model, "can_generate", None)) and can():
        unshifted = UNSHIFTED & {each.__name__ for each in type(model).__mro__}
        return not (is_encoder_decoder(model) or unshifted or type(model).__name__.endswith("ForCTC"))
    words = getattr(model, "get_output_embeddings", None)
    kinds = kinds_of(model)
    if "dec-self" not in kinds or is_encoder_decoder(model):
        return False
    return "enc-self" not in kinds if words is None else words() is not None


def in_parts(batch: Any, positions: int) -> Iterator[Any]:
    """A pair of texts in parts of so many source or target positions, padding counted, and at least a
    sentence; a mapping whole, as its maker knows what of it belongs to which sentence."""
    if isinstance(batch, Mapping):
        yield batch
        return
    rows = max(1, positions // max(batch.source.shape[1], batch.target_out.shape[1]))
    tensors = {name: each for name, each in vars(batch).items() if isinstance(each, Tensor)}
    for begin in range(0, len(batch.target_out), rows):
        yield replace(batch, **{name: each[begin : begin + rows] for name, each in tensors.items()})


@torch.no_grad()
def sampled_targets(model: Any, batch: Any, generator: torch.Generator) -> Any:
    """The batch with each target sampled from what the model says after the given ones before it; the batch
    as it is where its labels are no classes of the model's logits, such as those of CTC."""
    with decoder_inputs(model) as read:
        output = passed(model, batch)
    if not isinstance(batch, Mapping):
        padding = model.target_specials.padding
        output[..., padding] = -torch.inf
        own = sampled(output, generator)
        return replace(batch, target_out=own.where(batch.target_out != padding, batch.target_out))
    labels, logits = batch.get("labels"), getattr(output, "logits", None)
    if labels is None or logits is None or logits.shape[:-1] != labels.shape:
        return batch
    own = sampled(logits, generator)
    if labels.dim() > 1 and predicts_next(model):
        own = own.roll(1, 1)
    # a decoder that is given none makes its inputs of the labels, which are others now
    given = read if labels.dim() > 1 and "decoder_inputs_embeds" not in batch else {}
    return {**given, **batch, "labels": own.where(labels != IGNORED, labels)}


@contextmanager
def decoder_inputs(model: Any) -> Iterator[dict[str, Tensor]]:
    """Filled meanwhile with the ids that the decoder reads, by the name under which a model of an encoder and
    a decoder takes them; stays empty for other models."""
    read: dict[str, Tensor] = {}
    if not is_encoder_decoder(model) or "decoder_input_ids" not in signature(model.forward).parameters:
        yield read
        return

    def see(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        ids = options.get("input_ids", args[0] if args else None)
        if ids is not None:
            read["decoder_input_ids"] = ids

    handle = model.get_decoder().register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield read
    finally:
        handle.remove()


def sampled(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A class for each row of logits (.., V): the first whose cumulative probability exceeds a uniform
    number.

    The generator is the CPU's and gives one number a row, so that devices and chunks sample alike."""
    rows = logits.flatten(0, -2)
    uniform = torch.rand(len(rows), 1, generator=generator, dtype=torch.float64).to(rows.device)
    size = max(1, DRAWN_AT_ONCE[rows.device.type == "cpu"] // rows.shape[1])
    drawn = []
    for chunk, u in zip(rows.split(size), uniform.split(size), strict=True):
        cumulative = chunk.float().softmax(-1).cumsum(-1, dtype=torch.float64)
        drawn.append(torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True))
    return torch.cat(drawn).view(logits.shape[:-1])


def top_logits(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """The largest logit of every target position, 0 at padding, and (B, T) bool: which there are."""
    logits, decoder = passed(model, batch), is_encoder_decoder(model)
    if isinstance(batch, Mapping):
        logits = logits.logits
        if logits.dim() == 2:  # a class for a sentence
            logits = logits[:, None]
    else:
        decoder = True
    site = HeadSite.at("dec-self" if decoder else "enc-self", 0, 1)
    real = query_tokens(model, site, batch)
    real = real if logits.shape[1] == real.shape[1] else real.new_ones(logits.shape[:2])
    return logits.max(-1).values * real, real
