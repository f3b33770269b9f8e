"""What a trained model does with one sentence: what it says with any heads closed, how sure it is, where its
heads look, and what each head is worth on this sentence, exactly.

    effect(h) = L(y; h closed) - L(y; h open), all other heads as they are, in nats a sentence

y is what the model says of the sentence as the run has it, L the sum of -log p over its tokens. Every head
costs a row of one batch, no approximation. A head is patched by a second sentence of as many pieces: its
output is the one that it has when the model reads the second sentence and the same target tokens (activation
patching, Wang et al. 2023). Letters: N rows of a batch, S source pieces with the end, T target tokens with
the end, H heads of a site, K head width, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from headgates.analysis.without_heads import heads_at
from headgates.bridges.classifier import Labeller
from headgates.data.batch import pad
from headgates.gates import KINDS, HeadSite, attach, detach, find_sites
from headgates.gates.exchange import exchanged
from headgates.gates.headmap import Head, head_name
from headgates.gates.sites import BANK
from headgates.models.decoder_state import DecoderState, position_first
from headgates.models.draft_check import TIE_MARGIN, traced
from headgates.models.search import next_log_probs, rule_out, source_limits
from headgates.models.translator import Translator
from headgates.records.source import Source

ALTERNATIVES = 5  # next tokens that are shown at every step
LOGITS = 2**25  # numbers of one batch of effects, 128 MiB in fp32
KEPT_SENTENCES = 16  # sentences whose translation is kept as the run has it


@dataclass(frozen=True)
class Change:
    """What a row of a batch differs in from the model as it was trained: closed heads, and heads whose output
    comes from the batch's last row."""

    shut: frozenset[Head] = frozenset()
    patched: frozenset[Head] = frozenset()


@dataclass(frozen=True)
class Said:
    """What a model says: ids (T,) with the end, and the log probabilities (T, V) of each next token."""

    ids: list[int]
    log_p: Tensor
    draft: Tensor | None = None  # (T,) log probabilities of a draft's tokens, where one was checked whole
    weights: Mapping[str, Tensor] | None = None  # site -> attention (H, T, S), where it says the draft

    @property
    def chosen(self) -> Tensor:
        """(T,) log probabilities of the ids, in nats."""
        return self.log_p[torch.arange(len(self.ids)), self.ids]


class SentenceModel:
    """A translator or a classifier that answers about single sentences; while it lives, the model has masks.

    start: the heads that the run itself closed. longest: pieces that a sentence may have, the end left out.
    Raises ValueError for a model without heads, or of another task."""

    def __init__(self, source: Source, *, longest: int):
        self.source, predictor = source, source.predictor
        if not isinstance(predictor, Translator | Labeller):
            task = source.config.get("task")
            raise ValueError(
                f"{source.folder.path} neither translates nor labels sentences: its task is {task}"
            )
        self.model: Any = predictor.model
        self.translates = isinstance(predictor, Translator)
        self.source_vocab, self.target_vocab = predictor.source_vocab, predictor.target_vocab
        positions = getattr(predictor, "max_positions", None)  # a classifier's vocabulary cuts what is longer
        self.longest = longest if positions is None else min(longest, positions - 1)
        bank = getattr(self.model, BANK, None)
        own = {} if bank is None else dict(bank.values().items())
        detach(self.model)
        neurons = {site: row for site, row in own.items() if site.kind not in KINDS}  # which stay as they are
        kinds = {*KINDS, *(site.kind for site in neurons)}
        self.bank = attach(self.model, gate="mask", kinds=kinds).requires_grad_(False)
        self.bank.assign(neurons)
        self.model.eval()
        self.modules = {site: module for site, module in find_sites(self.model).items() if site.heads}
        xi = {site: own.get(site, torch.ones(site.heads)).float() for site in self.modules}
        self.heads: dict[str, Head] = {head_name(head): head for head in heads_at(xi)}
        self.start = frozenset((site, head) for site, head in self.heads.values() if xi[site][head] == 0)
        self.xi = {
            site: torch.where(row == 0, 1.0, row) for site, row in xi.items()
        }  # of heads that are open
        self.device = next(self.model.parameters()).device
        # what it says as the run has it, and each head's effect with all others as the run has them
        self.as_it_is = lru_cache(KEPT_SENTENCES)(lambda text: self.say(text, Change(self.start)))
        self.effects_alone = lru_cache(1)(lambda text: self.effects(text, self.start))

    # ------------------------------------------------------------ text

    def encode(self, text: str) -> list[int]:
        """The pieces of one sentence; for a classifier also of two, with a tab between them, or |||, which
        can be typed. Raises ValueError where there are none, or too many."""
        parts = [text] if self.translates else text.replace("|||", "\t").split("\t")
        ids = self.source_vocab.encode(["\t".join(" ".join(part.split()) for part in parts)])[0]
        if not ids:
            raise ValueError("the sentence is empty: type one")
        if len(ids) > self.longest:
            raise ValueError(
                f"the sentence has {len(ids)} pieces; expected at most {self.longest}: shorten it"
            )
        return list(ids)

    def source_pieces(self, text: str) -> list[str]:
        """The pieces of a sentence and its end."""
        return list(self.source_vocab.pieces([*self.encode(text), self.source_vocab.specials.end]))

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        end, vocab = self.target_vocab.specials.end, self.target_vocab
        return ["</s>" if i == end else vocab.pieces([i])[0] for i in ids]

    def written(self, ids: Sequence[int]) -> str:
        """The text of target ids that may end in the end."""
        kept = [i for i in ids if i != self.target_vocab.specials.end]
        return self.target_vocab.decode([kept])[0] if kept else ""

    def sources(self, text: str, other: str | None = None) -> Tensor:
        """(1, S), or (2, S) with another sentence. Raises ValueError unless both have as many pieces."""
        ids = [self.encode(each) for each in (text, other) if each is not None]
        if len({len(each) for each in ids}) > 1:
            counts = " and ".join(str(len(each)) for each in ids)
            raise ValueError(
                f"the two sentences have {counts} pieces; a head is patched between equal lengths"
            )
        return pad(ids, self.source_vocab.specials, end=True).to(self.device)

    # ------------------------------------------------------------ rows of a batch

    def set_gates(self, changes: Sequence[Change]) -> None:
        """Give row n of the next batch the gates of changes[n]."""
        rows = {site: xi.repeat(len(changes), 1) for site, xi in self.xi.items()}  # (N, H)
        for n, change in enumerate(changes):
            for site, head in change.shut:
                rows[site][n, head] = 0.0
        self.bank.assign(rows)

    @contextmanager
    def patching(self, changes: Sequence[Change]) -> Iterator[None]:
        """Meanwhile patched heads of row n give out what they give out in the last row."""
        rows: dict[HeadSite, list[tuple[int, int]]] = {}
        for n, change in enumerate(changes):
            for site, head in change.patched:
                rows.setdefault(site, []).append((n, head))

        def patch(site: HeadSite, z: Tensor) -> Tensor:  # (N, L, H, K)
            z = z.clone()
            for n, head in rows[site]:
                z[n, :, head] = z[-1, :, head]
            return z

        with exchanged({site: self.modules[site] for site in rows}, patch):
            yield

    def log_probs(self, source: Tensor, target: Sequence[int], changes: Sequence[Change]) -> Tensor:
        """The log probabilities (N, T, V) of each next token of one target, a row a change. source: (1, S),
        or (2, S) where patched heads read the second, which is then the last row."""
        rows = source[:1].expand(len(changes) - len(source) + 1, -1)
        rows = rows if len(source) == 1 else torch.cat([rows, source[1:]])  # (N, S)
        with self.patching(changes):
            if not self.translates:
                self.set_gates(changes)
                logits = self.model(rows)[:, None]  # (N, 1, V): a label is one token
            else:
                memory, bias = self.encoded(rows, changes)
                self.set_gates(changes)
                target_in = self.target_in(target, len(rows))
                logits = self.model.output(self.model.decode(memory, bias, target_in))
        return torch.log_softmax(logits.float(), -1)

    def encoded(self, rows: Tensor, changes: Sequence[Change]) -> tuple[Tensor, Tensor]:
        """The memory (N, S, D) of rows (N, S), and the mask of its padding. Rows whose encoder heads are the
        same are encoded once: most changes are the decoder's."""
        if any(change.patched for change in changes):
            self.set_gates(changes)
            return self.model.encode(rows)
        own = [frozenset(head for head in change.shut if head[0].kind == "enc-self") for change in changes]
        first = {shut: n for n, shut in reversed(list(enumerate(own)))}
        self.set_gates([Change(shut) for shut in first])
        memory, bias = self.model.encode(rows[list(first.values())])
        places = {shut: place for place, shut in enumerate(first)}
        where = torch.tensor([places[shut] for shut in own], device=self.device)
        return memory[where], bias[where]

    def target_in(self, target: Sequence[int], rows: int) -> Tensor:
        """(N, T) what the decoder reads to give each token of the target."""
        one = pad([list(target[:-1])], self.target_vocab.specials, begin=True).to(self.device)
        return one.expand(rows, -1)

    @torch.inference_mode()
    def token_log_probs(
        self, text: str, target: Sequence[int], changes: Sequence[Change], *, other: str | None = None
    ) -> Tensor:
        """The log probability (N, T) of every target token under each change, float64, in nats. other: the
        sentence that patched heads read."""
        source = self.sources(text, other)
        ids = torch.tensor(list(target), device=self.device)
        size = max(1, LOGITS // (len(self.target_vocab) * len(target)))
        parts = []
        for begin in range(0, len(changes), size):
            part = list(changes[begin : begin + size])
            log_p = self.log_probs(source, target, part + [Change(self.start)] * (len(source) - 1))
            chosen = log_p.gather(2, ids[None, :, None].expand(len(log_p), -1, 1)).squeeze(2)
            parts.append(chosen[: len(part)].double().cpu())
        return self.asked(torch.cat(parts))

    def asked(self, log_p: Tensor) -> Tensor:
        """Log probabilities (..., T) with 0 for tokens that are forced, which the model is not asked for."""
        if self.translates:
            log_p[..., : len(self.target_vocab.specials.forced)] = 0.0
        return log_p

    # ------------------------------------------------------------ what it says

    @torch.inference_mode()
    def say(
        self,
        text: str,
        change: Change,
        *,
        prefix: Sequence[int] = (),
        other: str | None = None,
        draft: Sequence[int] = (),
    ) -> Said:
        """What the model says under a change, a prefix given: by greedy search, or the label.

        draft: a translation that it may say, such as that without the change; one pass checks it, and search
        goes on from where it fails. other: the sentence that patched heads read. Raises ValueError where the
        prefix is no beginning of a translation, or too long."""
        source = self.sources(text, other)
        changes = [change, Change(self.start)][: len(source)]
        self.check_prefix(prefix)
        if not self.translates:
            log_p = self.log_probs(source, (), changes)[0].cpu()
            return Said([prefix[0] if prefix else int(log_p.argmax())], log_p)
        search = self.source.translator.search
        specials, least = self.target_vocab.specials, search.min_length
        limit = int(source_limits(self.model, source[:1], search)[0])
        if len(prefix) > limit:
            raise ValueError(f"the beginning has {len(prefix)} tokens; expected at most {limit}")
        weights: dict[str, Tensor] = {}
        ids, steps, state, checked = self.checked(
            source, changes, prefix or draft, given=len(prefix), limit=limit, weights=weights
        )
        with self.patching(changes):
            while not ids or ids[-1] != specials.end:
                last = torch.full((len(source),), ids[-1] if ids else specials.beginning, device=self.device)
                at_limit = torch.full((len(source),), limit <= len(ids) + 1, device=self.device)
                logits = self.model.step(last, state)
                steps.append(next_log_probs(logits, state.length - 1, specials, at_limit, least)[0].cpu())
                ids.append(prefix[len(ids)] if len(ids) < len(prefix) else int(steps[-1].argmax()))
        whole = checked if not prefix and len(checked) == len(draft) else None
        kept = {name: each[0].float().cpu() for name, each in weights.items()}
        same = kept and len(checked) == len(ids) and ids == list(prefix or draft)
        return Said(ids, torch.stack(steps), whole, kept if same else None)

    def checked(
        self,
        source: Tensor,
        changes: Sequence[Change],
        draft: Sequence[int],
        *,
        given: int,
        limit: int,
        weights: dict[str, Tensor],
    ) -> tuple[list[int], list[Tensor], DecoderState, Tensor]:
        """The first tokens of a draft that greedy search takes too (the first `given` it must), their log
        probabilities (V,), the state from which it goes on, and the log probabilities of all of the draft's
        tokens.

        The last token before the limit is left to the search. weights is filled with the attention of every
        site."""
        self.set_gates(changes)
        draft = list(draft[: limit - 1])
        if not draft:
            with self.patching(changes):
                return [], [], self.model.start(source), torch.empty(0)
        specials, least = self.target_vocab.specials, self.source.translator.search.min_length
        with self.patching(changes), traced(self.model) as trace:
            logits = self.model(source, self.target_in(draft, len(source)), weights)[0]
        log_p = torch.log_softmax(logits.float(), -1)  # (T, V)
        own = self.asked(log_p[torch.arange(len(draft)), draft].double().cpu())
        log_p = rule_out(log_p, specials, torch.arange(len(draft), device=self.device) < least)
        for position, token in enumerate(specials.forced[: len(draft)]):
            log_p[position] = -torch.inf
            log_p[position, token] = 0.0
        best, tokens = (each.cpu() for each in log_p.topk(2, dim=1))
        takes = (tokens[:, 0] == torch.tensor(draft)) & (best[:, 0] - best[:, 1] >= TIE_MARGIN)
        takes[:given] = True
        count = len(draft) if takes.all() else int(takes.int().argmin())
        rows = torch.arange(len(source), device=self.device)
        cross = [(keys.contiguous(), values.contiguous()) for keys, values in trace["cross"]]
        past = tree_map(lambda each: position_first(each).contiguous(), trace["past"])
        state = DecoderState(cross, self.model.source_bias(source), rows, rows, past, count)
        return draft[:count], list(log_p[:count].cpu()), state, own

    def check_prefix(self, prefix: Sequence[int]) -> None:
        """Raises ValueError unless a translation, or a label, can begin so."""
        specials = self.target_vocab.specials
        size = len(self.target_vocab)
        strange = [
            i for i in prefix if not 0 <= i < size or (self.translates and i in specials.never_produced)
        ]
        if strange or specials.end in prefix[:-1] or (not self.translates and len(prefix) > 1):
            raise ValueError(f"no {'translation' if self.translates else 'label'} begins with these tokens")

    @torch.inference_mode()
    def attention(
        self, text: str, target: Sequence[int], change: Change, *, other: str | None = None
    ) -> Mapping[str, Tensor]:
        """Site -> weights (H, T, S) under a change, with these target tokens; of a layer that runs several
        times the mean of its runs."""
        source = self.sources(text, other)
        changes = [change, Change(self.start)][: len(source)]
        weights: dict[str, Tensor] = {}
        self.set_gates(changes)
        with self.patching(changes):
            memory, bias = self.model.encode(source, weights)
            if self.translates:
                self.model.decode(memory, bias, self.target_in(target, len(source)), weights)
        runs = {name: each if each.dim() == 5 else each[None] for name, each in weights.items()}
        return {name: each[:, 0].float().mean(0).cpu() for name, each in runs.items()}

    # ------------------------------------------------------------ what heads are worth

    def effects(self, text: str, shut: frozenset[Head]) -> dict[str, float]:
        """Head -> loss of what the model says as it is, with the head closed, minus that with the head open,
        all others as in `shut`; nats a sentence, above 0 where the head helps."""
        changes = [Change(shut), *(Change(shut ^ {head}) for head in self.heads.values())]
        now, *turned = (-self.token_log_probs(text, self.as_it_is(text).ids, changes).sum(1)).tolist()
        return {
            name: now - loss if head in shut else loss - now
            for (name, head), loss in zip(self.heads.items(), turned, strict=True)
        }

    def patch_effects(self, text: str, other: str) -> dict[str, float]:
        """Head -> what patching it alone by the other sentence adds to the loss of what the model says as it
        is, nats a sentence. Raises ValueError where the lengths differ."""
        changes = [
            Change(self.start),
            *(Change(self.start, frozenset([head])) for head in self.heads.values()),
        ]
        target = self.as_it_is(text).ids
        whole, *patched = (-self.token_log_probs(text, target, changes, other=other).sum(1)).tolist()
        return {name: loss - whole for name, loss in zip(self.heads, patched, strict=True)}
