"""What the parameters of our Transformer are called in Marian's model files, for reading and writing alike.

Marian's matrices are (inputs, outputs), the transpose of torch's, unless they embed; its vectors are (1,
outputs).
"""

from collections.abc import Iterator, Sequence

from headgates.configs.schema import ModelConfig

OUTPUT_BIAS = "decoder_ff_logit_out_b"


def layer_names(config: ModelConfig, decoder_numbers: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield (name in the state dict, Marian's) of all parameters but tables and the output's.
    decoder_numbers: the number, from 1, by which Marian calls the layer whose weights each decoder layer
    has."""
    for i in range(config.encoder_layers):
        yield from _layer(config, "encoder", i, i + 1)
    for i, number in enumerate(decoder_numbers):
        yield from _layer(config, "decoder", i, number)
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        if config.embedding_norm:
            yield from _norm(f"{side}_norm", f"{stack}_emb_ln", "_pre")
        if config.has_final_norm(stack):
            yield from _norm(f"{stack}.norm", f"{stack}_top_ln")


def _layer(config: ModelConfig, stack: str, i: int, number: int) -> Iterator[tuple[str, str]]:
    ours, theirs = f"{stack}.layers.{i}", f"{stack}_l{number}"
    before = "_pre" if config.norm_of(stack) == "pre" else ""
    attentions = [("self", "self")] if stack == "encoder" else [("self", "self"), ("cross", "context")]
    if stack == "decoder" and config.decoder_mixer == "ssru":
        attentions = attentions[1:]
        unit, rnn = f"{ours}.self_attention", f"{theirs}_rnn"
        yield from [
            (f"{unit}.update.weight", f"{rnn}_W"),
            (f"{unit}.forget.weight", f"{rnn}_Wf"),
            (f"{unit}.forget.bias", f"{rnn}_bf"),
        ]
        yield from _norm(f"{ours}.self_residual.norm", f"{rnn}_ln" if before else f"{rnn}_ffn_ln", before)
    for name, their_name in attentions:
        for each in ("q", "k", "v"):
            yield from _linear(f"{ours}.{name}_attention.{each}_proj", f"{theirs}_{their_name}", each)
        yield from _linear(f"{ours}.{name}_attention.out_proj", f"{theirs}_{their_name}", "o")
        yield from _norm(f"{ours}.{name}_residual.norm", f"{theirs}_{their_name}_Wo_ln", before)
    for each, suffix in (("inner", "1"), ("outer", "2")):
        yield from _linear(f"{ours}.feed_forward.{each}", f"{theirs}_ffn", suffix)
    yield from _norm(f"{ours}.feed_residual.norm", f"{theirs}_ffn_ffn_ln", before)


def _linear(ours: str, prefix: str, suffix: str) -> Iterator[tuple[str, str]]:
    yield from [(f"{ours}.weight", f"{prefix}_W{suffix}"), (f"{ours}.bias", f"{prefix}_b{suffix}")]


def _norm(ours: str, prefix: str, suffix: str = "") -> Iterator[tuple[str, str]]:
    yield from [(f"{ours}.weight", f"{prefix}_scale{suffix}"), (f"{ours}.bias", f"{prefix}_bias{suffix}")]


def table_names(config: ModelConfig) -> dict[str, str]:
    """Marian's names of the tables (V, D) of a model: one where the settings share it."""
    if config.embeddings == "tied":
        return {"source_embedding": "Wemb", "target_embedding": "Wemb", "output": "Wemb"}
    output = "decoder_Wemb" if config.embeddings == "tied-decoder" else "decoder_ff_logit_out_Wt"
    return {"source_embedding": "encoder_Wemb", "target_embedding": "decoder_Wemb", "output": output}
