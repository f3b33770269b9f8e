"""fairseq's Transformer in plain torch, sentence by sentence, and random checkpoints of it.

Written from a description of the files and the model, not from our reader or writer, which are tested against
it."""

import argparse
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PAD, END = 1, 2
WORDS = ["a", "dog", "sleeps", ".", "b@@", "ig", "sees", "the", "cat", "ca@@", "ts"]
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


class PlainFairseq:
    """A checkpoint with today's names, by its `args`."""

    def __init__(self, path: Path):
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, weights_only=True)
        self.args, self.weights = content["args"], content["model"]
        assert self.args.arch == "transformer"

    def log_probs(self, source: list[int], target: list[int]) -> Tensor:
        """Of every token of the target and of its end (T,); ids without the end."""
        memory = self.encode(source)
        states = self.stack("decoder", self.embed("decoder", [END, *target]), memory)
        logits = states @ self.weights["decoder.output_projection.weight"].T
        return logits.log_softmax(-1)[range(len(target) + 1), [*target, END]]

    def encode(self, source: list[int]) -> Tensor:
        return self.stack("encoder", self.embed("encoder", [*source, END]), None)

    def embed(self, stack: str, ids: list[int]) -> Tensor:
        table = self.weights[f"{stack}.embed_tokens.weight"]
        width = table.shape[1]
        x = table[ids] * (1.0 if self.args.no_scale_embedding else math.sqrt(width))
        rows = [PAD + 1 + t for t in range(len(ids))]
        if getattr(self.args, f"{stack}_learned_pos"):
            x = x + self.weights[f"{stack}.embed_positions.weight"][rows]
        else:
            half = width // 2
            angles = [
                [row * math.exp(-i * math.log(10000) / (half - 1)) for i in range(half)] for row in rows
            ]
            x = x + torch.tensor([[*map(math.sin, each), *map(math.cos, each)] for each in angles])
        return self.norm(x, f"{stack}.layernorm_embedding") if self.args.layernorm_embedding else x

    def stack(self, stack: str, x: Tensor, memory: Tensor | None) -> Tensor:
        names = ("normalize_before", "attention_heads", "layers")
        pre, heads, layers = (getattr(self.args, f"{stack}_{name}") for name in names)
        for layer in (f"{stack}.layers.{number}" for number in range(layers)):
            parts = ["self_attn", "encoder_attn"] if memory is not None else ["self_attn"]
            for part in [*parts, "final"]:
                norm = f"{layer}.{part}_layer_norm"
                h = self.norm(x, norm) if pre else x
                if part == "final":
                    activation = ACTIVATIONS[self.args.activation_fn]
                    y = self.linear(activation(self.linear(h, f"{layer}.fc1")), f"{layer}.fc2")
                else:
                    own = part == "self_attn"
                    causal = own and memory is not None
                    y = self.attend(h, h if own else memory, f"{layer}.{part}", heads, causal=causal)
                x = x + y if pre else self.norm(x + y, norm)
        late = float(self.weights[f"{stack}.version"][0]) >= (2 if stack == "encoder" else 3)
        return self.norm(x, f"{stack}.layer_norm") if pre and late else x

    def attend(self, x: Tensor, seen: Tensor, name: str, heads: int, *, causal: bool) -> Tensor:
        q, k, v = (
            self.linear(each, f"{name}.{letter}_proj").unflatten(1, (heads, -1)).transpose(0, 1)
            for letter, each in (("q", x), ("k", seen), ("v", seen))
        )  # (H, T, K)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.linear(z.transpose(0, 1).flatten(1), f"{name}.out_proj")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, x.shape[1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-5
        )


FLAGS = (
    "no_scale_embedding",
    "layernorm_embedding",
    "share_all_embeddings",
    "share_decoder_input_output_embed",
)
OF_STACK = {"attention_heads": 3, "ffn_embed_dim": 13, "normalize_before": False, "learned_pos": False}
DEFAULTS: dict[str, Any] = {
    "arch": "transformer",
    "task": "translation",
    "source_lang": "en",
    "target_lang": "de",
    "activation_fn": "relu",
    "encoder_layers": 1,
    "decoder_layers": 2,
    "dropout": 0.1,
    "max_source_positions": 31,
    "max_target_positions": 31,
    **dict.fromkeys(FLAGS, False),
    **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in OF_STACK.items()},
}


def random_checkpoint(path: Path, *, width: int = 12, joined: bool = False, **options: Any) -> dict[str, Any]:
    """Write a checkpoint of random weights with its two dictionaries, and return its content."""
    torch.manual_seed(11)
    args = argparse.Namespace(**DEFAULTS | options)
    words = {"encoder": WORDS, "decoder": WORDS if joined or args.share_all_embeddings else WORDS[:-1]}
    for language, stack in ((DEFAULTS["source_lang"], "encoder"), (DEFAULTS["target_lang"], "decoder")):
        (path.parent / f"dict.{language}.txt").write_text("".join(f"{word} 5\n" for word in words[stack]))
    weights: OrderedDict[str, Tensor] = OrderedDict()

    def matrix(name: str, *shape: int) -> None:
        weights[f"{name}.weight"] = torch.randn(shape) * 0.3

    def linear(name: str, inputs: int, outputs: int) -> None:
        matrix(name, outputs, inputs)
        weights[f"{name}.bias"] = torch.randn(outputs) * 0.3

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.rand(width) + 0.5, torch.randn(width) * 0.3

    for stack, side in (("encoder", "source"), ("decoder", "target")):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        if args.share_all_embeddings and stack == "decoder":
            weights["decoder.embed_tokens.weight"] = weights["encoder.embed_tokens.weight"]
        else:
            matrix(f"{stack}.embed_tokens", len(words[stack]) + 4, width)
        if getattr(args, f"{stack}_learned_pos"):
            matrix(f"{stack}.embed_positions", getattr(args, f"max_{side}_positions") + 2, width)
        if args.layernorm_embedding:
            norm(f"{stack}.layernorm_embedding")
        for number in range(getattr(args, f"{stack}_layers")):
            layer = f"{stack}.layers.{number}"
            for attention in ["self_attn"] + ["encoder_attn"] * (stack == "decoder"):
                for letter in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    linear(f"{layer}.{attention}.{letter}", width, width)
                norm(f"{layer}.{attention}_layer_norm")
            linear(f"{layer}.fc1", width, getattr(args, f"{stack}_ffn_embed_dim"))
            linear(f"{layer}.fc2", getattr(args, f"{stack}_ffn_embed_dim"), width)
            norm(f"{layer}.final_layer_norm")
        if getattr(args, f"{stack}_normalize_before"):
            norm(f"{stack}.layer_norm")
    if args.share_all_embeddings or args.share_decoder_input_output_embed:
        weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"]
    else:
        matrix("decoder.output_projection", len(words["decoder"]) + 4, width)
    content = {
        "args": args,
        "model": weights,
        "optimizer_history": [{"num_updates": 3}],
        "extra_state": {"epoch": 1},
    }
    torch.save(content, path)
    return content


def of_old(content: dict[str, Any]) -> dict[str, Any]:
    """The same checkpoint as fairseq 0.6 to 0.9 named its weights."""
    old: OrderedDict[str, Tensor] = OrderedDict()
    numbers = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    for name, tensor in content["model"].items():
        stack, _, rest = name.partition(".")
        if name.endswith((".k_proj.weight", ".v_proj.weight", ".k_proj.bias", ".v_proj.bias")):
            continue
        if ".q_proj." in name:
            fused = [content["model"][name.replace(".q_proj.", f".{letter}_proj.")] for letter in "qkv"]
            old[name.replace(".q_proj.", ".in_proj_")] = torch.cat(fused)
        elif rest.startswith("layers.") and "_layer_norm." in rest:
            _, number, norm, kind = rest.split(".")
            old[
                f"{stack}.layers.{number}.layer_norms.{numbers[stack].index(norm.removesuffix('_layer_norm'))}.{kind}"
            ] = tensor
        elif name == "decoder.output_projection.weight":
            if tensor is not content["model"]["decoder.embed_tokens.weight"]:
                old["decoder.embed_out"] = tensor
        else:
            old[name] = tensor
    for stack in ("encoder", "decoder"):
        if not getattr(content["args"], f"{stack}_learned_pos"):
            old[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    return {**content, "model": old}
