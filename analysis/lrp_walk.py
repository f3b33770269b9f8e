"""A forward pass over a batch that knows the way back: from the top-1 logits through every step to the embeddings.

The pass is computed again from the modules' weights, so that it can be in float64 and each step is seen; it is what models/transformer.py
does in evaluation (a test compares the logits). Each step leaves a function that carries relevance from its output to its input
(lrp_rules.py). Several rows of seeds, one for each generation step, go the same way back at once: they are one more dimension in front.
Letters: C rows of seeds, B sentences, L positions of queries, S of keys, T target positions, H heads, K head width, D model width,
V vocabulary.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from analysis.lrp_rules import Account, Back, Rule, passed
from data.batch import Batch
from gates import gate_heads
from models.attention import MultiHeadAttention, attention_weights
from models.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer, padding_bias

CHUNK = 256  # tokens whose logits exist at a time: (N, V) of a whole batch would be its largest tensor

Inner = Callable[[Tensor, Account], tuple[Tensor | None, Tensor | None]]  # relevance of a sub-layer's output -> of its input, of the memory
Layer = Callable[[Tensor, Account], tuple[Tensor, Tensor | None]]  # the same through its residual connection and norm


class Walk:
    """The model must be in evaluation mode. `logits` (B, T) are the largest logits, `best` (B, T) their ids, both 0 at padding, where
    `real` (B, T) is False."""

    def __init__(self, model: Transformer, batch: Batch, rule: Rule, dtype: torch.dtype):
        self.rule, self.dtype = rule, dtype
        hidden = padding_bias(batch.source, model.source_specials.padding)  # (B, 1, 1, S)
        length = batch.target_in.shape[1]
        causal = torch.full((length, length), -torch.inf, device=batch.source.device).triu(1)

        self.source = x = model.embed(batch.source, "source").to(dtype)
        self.encoder: list[Layer] = []
        for i, layer in enumerate(cast(list[EncoderLayer], model.encoder.layers)):
            x = self.attend(self.encoder, layer.self_residual, x, layer.self_attention, f"encoder.{i}.enc-self", None, hidden)
            x = self.feed(self.encoder, layer.feed_residual, x, layer.feed_forward)
        memory, self.encoder_norm = self.norm(model.encoder.norm, x)

        self.target = x = model.embed(batch.target_in, "target").to(dtype)
        self.decoder: list[Layer] = []
        for i, each in enumerate(cast(list[DecoderLayer], model.decoder.layers)):
            x = self.attend(self.decoder, each.self_residual, x, each.self_attention, f"decoder.{i}.dec-self", None, causal)
            x = self.attend(self.decoder, each.cross_residual, x, each.cross_attention, f"decoder.{i}.cross", memory, hidden)
            x = self.feed(self.decoder, each.feed_residual, x, each.feed_forward)
        x, self.decoder_norm = self.norm(model.decoder.norm, x)

        self.best, self.real = best_tokens(x, model.output.weight.to(dtype), batch, model.target_specials.padding)
        rows = model.output.weight.to(dtype)[self.best]  # (B, T, D)
        y = (x * rows).sum(-1)
        self.logits = y * self.real
        self.top = rule.top(x, rows, y)

    def linear(self, module: nn.Linear, x: Tensor) -> tuple[Tensor, Back]:
        weight, bias = module.weight.to(self.dtype), module.bias.to(self.dtype)
        y = F.linear(x, weight, bias)
        return y, self.rule.linear(x, weight, bias, y)

    def norm(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Back]:
        if isinstance(module, nn.Identity):  # what stands at the end of a post-norm stack
            return x, passed
        assert isinstance(module, nn.LayerNorm)
        y = F.layer_norm(x, x.shape[-1:], module.weight.to(self.dtype), module.bias.to(self.dtype), module.eps)
        return y, self.rule.norm(module, x, y)

    def residual(self, ways: list[Layer], residual: Residual, x: Tensor, inner: Callable[[Tensor], tuple[Tensor, Inner]]) -> Tensor:
        """x + f(norm(x)) or norm(x + f(x)); `inner` is f. Its way back is added to `ways`."""
        h, before = self.norm(residual.norm, x) if residual.pre else (x, passed)
        y, within = inner(h)
        out, after = (x + y, passed) if residual.pre else self.norm(residual.norm, x + y)
        split = self.rule.add(x, y)

        def back(R: Tensor, account: Account) -> tuple[Tensor, Tensor | None]:
            R_x, R_y = split(after(R, account), account)
            R_h, R_memory = within(R_y, account)
            return R_x if R_h is None else R_x + before(R_h, account), R_memory

        ways.append(back)
        return out

    def feed(self, ways: list[Layer], residual: Residual, x: Tensor, module: FeedForward) -> Tensor:
        def inner(h: Tensor) -> tuple[Tensor, Inner]:
            a, inner_back = self.linear(module.inner, h)
            a = F.relu(a)
            relu_back = self.rule.relu(a)
            y, outer_back = self.linear(module.outer, a)
            return y, lambda R, account: (inner_back(relu_back(outer_back(R, account), account), account), None)

        return self.residual(ways, residual, x, inner)

    def attend(
        self, ways: list[Layer], residual: Residual, x: Tensor, module: MultiHeadAttention, site: str, memory: Tensor | None, bias: Tensor
    ) -> Tensor:
        """Return the output of a sub-layer of attention from x to `memory`, or to x itself where memory is None."""
        return self.residual(ways, residual, x, lambda h: self.attention(module, site, h, memory, bias))

    def attention(self, module: MultiHeadAttention, site: str, x: Tensor, memory: Tensor | None, bias: Tensor) -> tuple[Tensor, Inner]:
        """W_O [xi_1 A_1 V_1; ..; xi_H A_H V_H] + b_O. The way back leads through the values alone, because A is constant."""
        keys = x if memory is None else memory
        if module.heads:
            v, v_back = self.linear(module.v_proj, keys)
            q = F.linear(x, module.q_proj.weight.to(self.dtype), module.q_proj.bias.to(self.dtype))
            k = F.linear(keys, module.k_proj.weight.to(self.dtype), module.k_proj.bias.to(self.dtype))
            weights = attention_weights(module.split(q) * module.head_width**-0.5, module.split(k), bias)  # (B, H, L, S)
            if module.gate is not None:
                weights = gate_heads(weights, module.gate())  # xi (A V) = (xi A) V
            values = module.split(v)
            heads = weights @ values  # (B, H, L, K)
            mix_back = self.rule.mix(weights, values, heads)
            z = heads.transpose(1, 2).flatten(2)  # (B, L, H * K)
        else:
            z = x[..., :0]  # only the bias of W_O comes out
        y, out_back = self.linear(module.out_proj, z)

        def back(R: Tensor, account: Account) -> tuple[Tensor | None, Tensor | None]:
            R_z = out_back(R, account)
            if module.heads:
                R_heads = R_z.unflatten(-1, (module.heads, -1))  # (C, B, L, H, K)
                account.heads[site] = self.rule.relevance(R_z, z).unflatten(-1, (module.heads, -1)).sum((2, 4)).double()
                R_v = mix_back(R_heads.transpose(2, 3), account)  # (C, B, H, S, K)
                R_keys = v_back(R_v.transpose(2, 3).flatten(3), account)
            else:
                R_keys = R.new_zeros(len(R), *keys.shape)
            return (R_keys, None) if memory is None else (None, R_keys)

        return y, back

    def back(self, seed: Tensor) -> Account:
        """Return where the relevance `seed` (C, B, T) of the top-1 logits goes."""
        account = Account(seed.sum(2))
        R = self.decoder_norm(self.top(seed, account), account)
        memory: Tensor | None = None
        for layer in reversed(self.decoder):
            R, R_memory = layer(R, account)
            if R_memory is not None:
                memory = R_memory if memory is None else memory + R_memory
        account.target += self.rule.relevance(R, self.target).sum((2, 3))
        assert memory is not None  # a decoder has layers, and every layer answers to the memory
        R = self.encoder_norm(memory, account)
        for layer in reversed(self.encoder):
            R, _ = layer(R, account)
        account.source += self.rule.relevance(R, self.source).sum((2, 3))
        return account


def top_logits(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the largest logit of every target position (B, T), 0 at padding, and (B, T) bool, True where there is a position."""
    memory, bias = model.encode(batch.source)
    x = model.decode(memory, bias, batch.target_in)  # (B, T, D)
    best, real = best_tokens(x, model.output.weight, batch, model.target_specials.padding)
    return (x * model.output.weight[best]).sum(-1) * real, real


@torch.no_grad()
def best_tokens(states: Tensor, weight: Tensor, batch: Batch, padding: int) -> tuple[Tensor, Tensor]:
    """Return the ids (B, T) of the largest logits, 0 at padding, and (B, T) bool, False at padding. states (B, T, D), weight (V, D)."""
    real = batch.target_out != padding
    best = torch.zeros_like(batch.target_out)
    best[real] = torch.cat([(part @ weight.T).argmax(1) for part in states[real].split(CHUNK)])
    return best, real
