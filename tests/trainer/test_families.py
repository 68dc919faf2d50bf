"""Every model family against `transformers`: same config, same weights, same logits and gradients.

`transformers` is a dependency of the tests alone. Its models are built from the `config.json`
fields that the product reads too, so a field that is read wrongly shows here.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

from search_spaces.counts import num_parameters
from search_spaces.model_io import parse_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.engine import Engine
from trainer.mesh import ParallelMesh
from trainer.model.parameters import cut
from trainer.reference import ReferenceModel

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "vocab_size": 101,
    },
    "llama": {"model_type": "llama", **LLAMA, "rope_theta": 500000.0, "rms_norm_eps": 1e-6},
    "llama-tied": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", **LLAMA, "head_dim": 16, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **LLAMA, "tie_word_embeddings": True},
    "mixtral": {
        "model_type": "mixtral", **LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
}  # fmt: skip
TOKENS = 24


def hugging_face_model(fields, weights, spec):
    """The family's own model in `transformers`, with our weights under its names."""
    config = transformers.AutoConfig.for_model(
        **fields, bos_token_id=None, eos_token_id=None, attn_implementation="eager",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    rename = gpt2_names if spec.family == "gpt2" else llama_names
    named = rename(weights, spec)
    if spec.tied_embeddings:
        named["lm_head.weight"] = weights["token_embedding"]
    model.load_state_dict(named, strict=True)
    return model


def gpt2_names(weights, spec):
    """GPT-2's layers keep their matrices as (in, out)."""
    named = {
        "transformer.wte.weight": weights["token_embedding"],
        "transformer.wpe.weight": weights["position_embedding"],
        "transformer.ln_f.weight": weights["final_norm.weight"],
        "transformer.ln_f.bias": weights["final_norm.bias"],
    }
    parts = {
        "ln_1": ("norm1", ".bias"), "attn.c_attn": ("attention.qkv", ".bias"),
        "attn.c_proj": ("attention.out", ".row_bias"), "ln_2": ("norm2", ".bias"),
        "mlp.c_fc": ("feed_forward.up", ".bias"), "mlp.c_proj": ("feed_forward.down", ".row_bias"),
    }  # fmt: skip
    for layer in range(spec.num_layers):
        for theirs, (ours, bias) in parts.items():
            weight = weights[f"layers.{layer}.{ours}.weight"]
            named[f"transformer.h.{layer}.{theirs}.weight"] = weight.t()
            named[f"transformer.h.{layer}.{theirs}.bias"] = weights[f"layers.{layer}.{ours}{bias}"]
    return named


def llama_names(weights, spec):
    """The Llama family keeps fused matrices apart; Mixtral stacks its experts."""
    named = {
        "model.embed_tokens.weight": weights["token_embedding"],
        "model.norm.weight": weights["final_norm.weight"],
    }
    if not spec.tied_embeddings:
        named["lm_head.weight"] = weights["head"]
    kv_size = spec.num_kv_heads * spec.head_dim
    sizes = [spec.num_heads * spec.head_dim, kv_size, kv_size]
    for layer in range(spec.num_layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        named[f"{theirs}.input_layernorm.weight"] = weights[f"{ours}.norm1.weight"]
        named[f"{theirs}.post_attention_layernorm.weight"] = weights[f"{ours}.norm2.weight"]
        named[f"{theirs}.self_attn.o_proj.weight"] = weights[f"{ours}.attention.out.weight"]
        for kind in ("weight", "bias") if spec.qkv_bias else ("weight",):
            fused = weights[f"{ours}.attention.qkv.{kind}"].split(sizes)
            for name, part in zip("qkv", fused, strict=True):
                named[f"{theirs}.self_attn.{name}_proj.{kind}"] = part
        feed_forward = {
            name.removeprefix(f"{ours}.feed_forward."): weight
            for name, weight in weights.items()
            if name.startswith(f"{ours}.feed_forward.")
        }
        named |= {f"{theirs}.mlp.{name}": w for name, w in mlp_names(feed_forward, spec).items()}
    return named


def mlp_names(weights, spec):
    if not spec.num_experts:
        gate, up = weights["up.weight"].chunk(2)
        return {
            "gate_proj.weight": gate, "up_proj.weight": up,
            "down_proj.weight": weights["down.weight"],
        }  # fmt: skip
    experts = range(spec.num_experts)
    return {
        "gate.weight": weights["router.weight"],
        "experts.gate_up_proj": torch.stack([weights[f"experts.{e}.up.weight"] for e in experts]),
        "experts.down_proj": torch.stack([weights[f"experts.{e}.down.weight"] for e in experts]),
    }


def random_weights(spec):
    """Values large enough that no part of the model can hide, biases and norms included."""
    generator = torch.Generator().manual_seed(1)
    shapes = {name: w.shape for name, w in ReferenceModel(spec).weights.items()}
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + ("norm" in name)
        for name, shape in shapes.items()
    }


@pytest.fixture(params=CONFIGS)
def case(request):
    """Spec, our weights, their model and some token ids."""
    fields = CONFIGS[request.param]
    spec = parse_model_spec(fields, request.param)
    weights = random_weights(spec)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, spec.vocab_size, (2, TOKENS), generator=generator)
    return spec, weights, hugging_face_model(fields, weights, spec), ids


def make_engine(spec, weights):
    config = ParallelConfig(micro_batch_size=2)
    training = TrainingSpec(sequence_length=TOKENS, global_batch_size=2)
    engine = Engine(spec, training, config, ParallelMesh(config, 1), 0, torch.device("cpu"))
    for unit in engine.units:
        for name, parameter in unit.parameters.items():
            parameter.data.copy_(cut(weights[name], parameter.spec, engine.form))
    return engine


def test_logits_of_the_kernel_equal_those_of_transformers(case):
    spec, weights, theirs, ids = case
    with torch.no_grad():
        expected = theirs(ids).logits
    logits = make_engine(spec, weights).stages[0].logits(ids)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)


def test_gradients_of_the_reference_equal_those_of_transformers(case):
    spec, weights, theirs, ids = case
    reference = ReferenceModel(spec)
    for name, weight in reference.weights.items():
        weight.data.copy_(weights[name])
    targets = ids.roll(-1, 1)
    loss = reference.loss(ids, targets)
    loss.backward()
    expected = cross_entropy(theirs(ids).logits.flatten(0, 1), targets.flatten())
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    names = {
        "gpt2": ("transformer.wte.weight", "transformer.h.0.ln_1.weight"),
        "mixtral": ("model.embed_tokens.weight", "model.layers.0.mlp.gate.weight"),
    }
    embedding, other = names.get(
        spec.family, ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight")
    )
    ours = "layers.0.feed_forward.router.weight" if spec.num_experts else "layers.0.norm1.weight"
    for mine, his in (("token_embedding", embedding), (ours, other)):
        torch.testing.assert_close(
            reference.weights[mine].grad, theirs.get_parameter(his).grad, rtol=1e-3, atol=1e-5
        )


def test_parameters_are_as_many(case):
    spec, _, theirs, _ = case
    count = sum(parameter.numel() for parameter in theirs.parameters())
    assert num_parameters(spec) == count
