"""Seeded random models small enough to build in milliseconds, and a real tokenizer made in code.

A random model's layers are unlike each other; `redundant` has middle layers that are near copies,
so that the right answer of similarity and collapse is known. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from laco.models import LoadedModel

VOCABULARY = 320
DEPTH = 6
WINDOW = 4  # sliding windows are this small, so that the attention type of a layer matters

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
SIZES: dict[str, Any] = {
    "num_hidden_layers": DEPTH,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}  # two query heads share a key
ALTERNATING = ["sliding_attention", "full_attention"] * (DEPTH // 2)
MIXED = ["sliding_attention", "sliding_attention", "full_attention"] * (DEPTH // 3)


def _build(model: type, config: type, **fields: Any) -> Callable[[], PreTrainedModel]:
    def build() -> PreTrainedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = model(config(**COMMON, **fields)).eval()
            with torch.no_grad():  # so large that layers change the hidden states visibly
                for name, parameter in made.named_parameters():
                    if parameter.dim() == 1:
                        parameter.add_(0.1 * torch.randn_like(parameter))
                    elif "embed" not in name and "lm_head" not in name:
                        parameter.mul_(5)
        return made.requires_grad_(False)

    return build


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _build(hf.LlamaForCausalLM, hf.LlamaConfig, **GROUPED),
    "mistral": _build(
        hf.MistralForCausalLM, hf.MistralConfig, **GROUPED, head_dim=8, sliding_window=WINDOW
    ),
    "qwen2": _build(
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config,
        **GROUPED,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=3,
    ),
    "qwen3": _build(
        hf.Qwen3ForCausalLM,
        hf.Qwen3Config,
        **GROUPED,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=2,
    ),
    "gemma2": _build(
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config,
        **GROUPED,
        head_dim=8,
        sliding_window=WINDOW,
        query_pre_attn_scalar=8,
    ),
    "gemma3_text": _build(
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig,
        **GROUPED,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=MIXED,
        query_pre_attn_scalar=8,
    ),
    "phi3": _build(hf.Phi3ForCausalLM, hf.Phi3Config, **GROUPED, sliding_window=None),
    "gpt2": _build(
        hf.GPT2LMHeadModel, hf.GPT2Config, n_layer=DEPTH, n_embd=32, n_head=4, n_positions=512
    ),
    "opt": _build(
        hf.OPTForCausalLM,
        hf.OPTConfig,
        num_hidden_layers=DEPTH,
        hidden_size=32,
        ffn_dim=48,
        num_attention_heads=4,
        max_position_embeddings=512,
        word_embed_proj_dim=16,  # so that there is a project_out after the last layer
    ),
    "gpt_neox": _build(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, **SIZES),
    "olmo2": _build(hf.Olmo2ForCausalLM, hf.Olmo2Config, **GROUPED),
    "smollm3": _build(hf.SmolLM3ForCausalLM, hf.SmolLM3Config, **GROUPED, no_rope_layer_interval=4),
    "granite": _build(
        hf.GraniteForCausalLM,
        hf.GraniteConfig,
        **GROUPED,
        logits_scaling=4.0,
        residual_multiplier=0.5,
        embedding_multiplier=3.0,
    ),
    "stablelm": _build(hf.StableLmForCausalLM, hf.StableLmConfig, **GROUPED),
    "falcon": _build(
        hf.FalconForCausalLM,
        hf.FalconConfig,
        num_hidden_layers=DEPTH,
        hidden_size=32,
        num_attention_heads=4,
        num_kv_heads=2,
        new_decoder_architecture=True,
    ),
    "bloom": _build(hf.BloomForCausalLM, hf.BloomConfig, n_layer=DEPTH, hidden_size=32, n_head=4),
}

EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}

# Families that laco has no row for; their configs speak of layers by index in many ways.
PROBED: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen2_moe": _build(
        hf.Qwen2MoeForCausalLM,
        hf.Qwen2MoeConfig,
        **GROUPED,
        **EXPERTS,
        num_experts=4,
        shared_expert_intermediate_size=16,
        decoder_sparse_step=2,
        mlp_only_layers=[1],
    ),
    "deepseek_v3": _build(
        hf.DeepseekV3ForCausalLM,
        hf.DeepseekV3Config,
        **SIZES,
        **EXPERTS,
        **LATENT,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=2,
    ),
    "qwen3_moe": _build(
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig,
        **GROUPED,
        **EXPERTS,
        head_dim=8,
        num_experts=4,
        mlp_only_layers=[0],
    ),
    "mixtral": _build(
        hf.MixtralForCausalLM,
        hf.MixtralConfig,
        **GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "deepseek_v2": _build(
        hf.DeepseekV2ForCausalLM,
        hf.DeepseekV2Config,
        **SIZES,
        **EXPERTS,
        **LATENT,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "gpt_oss": _build(  # experts lie [in, out], with biases
        hf.GptOssForCausalLM,
        hf.GptOssConfig,
        **GROUPED,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "ernie4_5_moe": _build(
        hf.Ernie4_5_MoeForCausalLM,
        hf.Ernie4_5_MoeConfig,
        **GROUPED,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=16,
    ),
    "llama4_text": _build(
        hf.Llama4ForCausalLM,
        hf.Llama4TextConfig,
        **GROUPED,
        head_dim=8,
        num_local_experts=4,
        intermediate_size_mlp=16,
        interleave_moe_layer_step=2,
        attention_chunk_size=WINDOW,
    ),
    "minicpm3": _build(hf.MiniCPM3ForCausalLM, hf.MiniCPM3Config, **SIZES, **LATENT),
    "cohere": _build(hf.CohereForCausalLM, hf.CohereConfig, **GROUPED, logit_scale=1.0),
    "cohere2": _build(
        hf.Cohere2ForCausalLM,
        hf.Cohere2Config,
        **GROUPED,
        logit_scale=1.0,
        sliding_window=WINDOW,
        layer_types=MIXED,
    ),
    "glm4": _build(hf.Glm4ForCausalLM, hf.Glm4Config, **GROUPED, head_dim=8),
    "gpt_neo": _build(
        hf.GPTNeoForCausalLM,
        hf.GPTNeoConfig,
        num_layers=DEPTH,
        hidden_size=32,
        num_heads=4,
        attention_types=[[["global", "local"], DEPTH // 2]],
        window_size=WINDOW,
    ),
    "lfm2": _build(
        hf.Lfm2ForCausalLM,
        hf.Lfm2Config,
        **GROUPED,
        layer_types=["conv", "conv", "full_attention"] * (DEPTH // 3),
    ),
    "qwen3_next": _build(  # recurrent and full attention, experts everywhere
        hf.Qwen3NextForCausalLM,
        hf.Qwen3NextConfig,
        **GROUPED,
        **EXPERTS,
        head_dim=8,
        num_experts=4,
        shared_expert_intermediate_size=16,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=["linear_attention", "linear_attention", "full_attention"] * (DEPTH // 3),
    ),
    "mamba": _build(  # no attention at all
        hf.MambaForCausalLM,
        hf.MambaConfig,
        num_hidden_layers=DEPTH,
        hidden_size=32,
        state_size=4,
        time_step_rank=4,
    ),
    "gemma3": _build(  # its text model is nested, beside a vision tower as deep
        hf.Gemma3ForConditionalGeneration,
        hf.Gemma3Config,
        text_config={
            **COMMON,
            **GROUPED,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": MIXED,
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": DEPTH,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
    ),
}


# Families whose layers come in a rhythm that the config states as a period: few edits keep it.
RHYTHMIC: dict[str, Callable[[], PreTrainedModel]] = {
    "jamba": _build(
        hf.JambaForCausalLM,
        hf.JambaConfig,
        **GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
    ),
}

# What laco refuses in part or whole, each for another reason.
REFUSED: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma3n_text": _build(  # layers read keys of others, and pass on four streams
        hf.Gemma3nForCausalLM,
        hf.Gemma3nTextConfig,
        **GROUPED,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=MIXED,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0, 0.0],
    ),
    "zamba": _build(  # one block of attention is shared by several layers
        hf.ZambaForCausalLM,
        hf.ZambaConfig,
        **SIZES,
        num_key_value_heads=4,
        n_mamba_heads=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        attn_layer_period=3,
        attn_layer_offset=2,
    ),
    "t5": _build(
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        d_model=16,
        d_kv=4,
        d_ff=16,
        num_layers=DEPTH,
        num_heads=2,
    ),
    "bert": _build(hf.BertForMaskedLM, hf.BertConfig, **SIZES),
}


def redundant(depth: int = DEPTH, first: int = 2, last: int = 4) -> PreTrainedModel:
    """A llama whose layers `first` to `last` (both included) change the hidden states very little.

    They are near copies of one another, so any of them can go, and any two of them can merge.
    """
    model = _build(hf.LlamaForCausalLM, hf.LlamaConfig, **{**GROUPED, "num_hidden_layers": depth})()
    layers: Any = model.model.layers  # type: ignore[union-attr]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for index in range(first, last + 1):
            layers[index].load_state_dict(layers[first].state_dict())
            for name, parameter in layers[index].named_parameters():
                parameter.add_(1e-4 * torch.randn_like(parameter))
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    parameter.mul_(0.02 if index == first else 1.0)
    return model


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Random token ids [batch, length], without the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 256, (batch, length), generator=generator)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: <s> is 0, </s> is 1, the 256 bytes follow, then some merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("e", "r"), ("Ġ", "the")]
    pieces = ["<s>", "</s>", *alphabet, *(a + b for a, b in merges)]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        model_max_length=512,
    )


def save(model: PreTrainedModel, folder: Path) -> Path:
    """The folder, now holding the model and the tokenizer as a hub checkout would."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def loaded(name: str = "llama") -> LoadedModel:
    """A tiny model as laco holds it; `redundant` is a name too."""
    from laco.layers import LayerStack
    from laco.models import LoadedModel
    from laco.recipe import ModelRef

    model = redundant() if name == "redundant" else ARCHITECTURES[name]()
    ref = ModelRef(path=f"tiny:{name}", revision="content:tiny", dtype="float32")
    return LoadedModel(model=model, tokenizer=tokenizer(), layers=LayerStack(model), ref=ref)
