"""The built-in families."""

from .families.afmoe import AFMOE
from .families.albert import ALBERT
from .families.apertus import APERTUS
from .families.apertus1p5 import APERTUS_1P5
from .families.arcee import ARCEE
from .families.aria import ARIA
from .families.axk1 import AXK1
from .families.bailing_hybrid import BAILING_HYBRID
from .families.bailing_moe import BAILING_MOE, BAILING_MOE_V2, SARVAM_MOE
from .families.bamba import BAMBA
from .families.bert import BERT
from .families.biogpt import BIOGPT
from .families.bitnet import BITNET
from .families.bloom import BLOOM
from .families.chatglm import CHATGLM
from .families.codegen import CODEGEN
from .families.cohere import COHERE, COHERE2
from .families.cohere2_moe import COHERE2_MOE
from .families.cohere_compass import COHERE_COMPASS
from .families.colbert import COLBERT
from .families.cwm import CWM
from .families.dbrx import DBRX
from .families.deberta_v2 import DEBERTA_V2
from .families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from .families.deepseek_moe import DEEPSEEK_MOE
from .families.deepseek_v32 import DEEPSEEK_V32
from .families.diffllama import DIFFLLAMA
from .families.distilbert import DISTILBERT
from .families.dots1 import DOTS1
from .families.electra import ELECTRA
from .families.embedding_gemma import EMBEDDING_GEMMA
from .families.ernie import ERNIE
from .families.ernie4_5 import ERNIE4_5
from .families.ernie4_5_moe import ERNIE4_5_MOE
from .families.eurobert import EUROBERT
from .families.exaone import EXAONE
from .families.exaone4 import EXAONE4
from .families.exaone_moe import EXAONE_MOE
from .families.falcon import FALCON
from .families.falcon_h1 import FALCON_H1
from .families.falcon_mamba import FALCON_MAMBA
from .families.flex_olmo import FLEX_OLMO
from .families.flint import FLINT
from .families.gemma import GEMMA
from .families.gemma2 import GEMMA2
from .families.gemma3 import GEMMA3
from .families.gemma3n import GEMMA3N
from .families.gemma4 import GEMMA4
from .families.glm import GLM, GLM4
from .families.glm4_moe import GLM4_MOE
from .families.glm4_moe_lite import GLM4_MOE_LITE
from .families.glm_moe_dsa import GLM_MOE_DSA
from .families.gpt2 import GPT2
from .families.gpt_bigcode import GPT_BIGCODE
from .families.gpt_neo import GPT_NEO
from .families.gpt_neox import GPT_NEOX
from .families.gpt_oss import GPT_OSS
from .families.gptj import GPTJ
from .families.granite import GRANITE
from .families.granite_swa import GRANITE_SWA
from .families.granitemoe import GRANITE_MOE
from .families.granitemoe_swa import GRANITE_MOE_SWA
from .families.granitemoehybrid import GRANITE_MOE_HYBRID
from .families.granitemoeshared import GRANITE_MOE_SHARED
from .families.gte import GTE
from .families.helium import HELIUM
from .families.hunyuan import HUNYUAN, HUNYUAN_MOE
from .families.hy_v3 import HY_V3
from .families.hyperclovax import HYPERCLOVAX
from .families.internlm import INTERNLM
from .families.internlm2 import INTERNLM2
from .families.internlm3 import INTERNLM3
from .families.iquestcoder import IQUEST_CODER
from .families.jais2 import JAIS2
from .families.jamba import JAMBA
from .families.jetmoe import JETMOE
from .families.jina_embeddings_v3 import JINA_EMBEDDINGS_V3
from .families.kimi_linear import KIMI_LINEAR
from .families.kolibri1 import KOLIBRI1
from .families.laguna import LAGUNA
from .families.lara_mini import LARA_MINI
from .families.lfm2 import LFM2
from .families.lfm2_moe import LFM2_MOE
from .families.lfm3 import LFM3
from .families.llama import LLAMA
from .families.llama4 import LLAMA4
from .families.longcat_flash import LONGCAT_FLASH
from .families.mamba import MAMBA
from .families.mamba2 import MAMBA2
from .families.mellum import MELLUM
from .families.mimo import MIMO
from .families.mimo_v2 import MIMO_V2
from .families.minicpm import MINICPM
from .families.minicpm3 import MINICPM3
from .families.minimax import MINIMAX
from .families.minimax_m2 import MINIMAX_M2
from .families.ministral import MINISTRAL
from .families.ministral3 import MINISTRAL3
from .families.mistral import MISTRAL
from .families.mistral4 import MISTRAL4
from .families.mixtral import MIXTRAL
from .families.mllama import MLLAMA
from .families.modernbert import MODERNBERT
from .families.modernbert_decoder import MODERNBERT_DECODER
from .families.mpnet import MPNET
from .families.mpt import MPT
from .families.nanochat import NANOCHAT
from .families.nemotron import NEMOTRON
from .families.nemotron_h import NEMOTRON_H
from .families.nemotron_nas import NEMOTRON_NAS
from .families.nomic_bert import NOMIC_BERT
from .families.olmo import OLMO
from .families.olmo2 import OLMO2
from .families.olmo3 import OLMO3
from .families.olmo_hybrid import OLMO_HYBRID
from .families.olmoe import OLMOE
from .families.openai_gpt import OPENAI_GPT
from .families.opt import OPT
from .families.orion import ORION
from .families.ouro import OURO
from .families.pangu import PANGU, PANGU_ULTRA
from .families.persimmon import PERSIMMON
from .families.phi import PHI
from .families.phi3 import PHI3
from .families.phi4_multimodal import PHI4_MULTIMODAL
from .families.phimoe import PHIMOE
from .families.qwen import QWEN
from .families.qwen2 import QWEN2
from .families.qwen3 import QWEN3
from .families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from .families.qwen3_next import QWEN3_NEXT
from .families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from .families.roberta import DATA2VEC_TEXT, ROBERTA
from .families.sarvam_mla import SARVAM_MLA
from .families.seed_oss import SEED_OSS
from .families.smollm3 import SMOLLM3
from .families.solar_open import SOLAR_OPEN
from .families.stablelm import STABLELM
from .families.starcoder2 import STARCODER2
from .families.t5_encoder import T5_ENCODER
from .families.vaultgemma import VAULT_GEMMA
from .families.xglm import XGLM
from .families.xlm_roberta_xl import XLM_ROBERTA_XL
from .families.youtu import YOUTU
from .families.zamba2 import ZAMBA2

FAMILIES = (
    LLAMA,
    MLLAMA,
    MISTRAL,
    QWEN,
    QWEN2,
    QWEN3,
    PHI3,
    PHI4_MULTIMODAL,
    GEMMA,
    GEMMA2,
    VAULT_GEMMA,
    GEMMA3,
    GEMMA3N,
    GEMMA4,
    GRANITE,
    GRANITE_SWA,
    HYPERCLOVAX,
    SMOLLM3,
    STARCODER2,
    OPT,
    XGLM,
    BIOGPT,
    OPENAI_GPT,
    MODERNBERT_DECODER,
    PERSIMMON,
    GPT2,
    GPT_BIGCODE,
    BLOOM,
    BERT,
    COLBERT,
    ROBERTA,
    DATA2VEC_TEXT,
    MODERNBERT,
    EMBEDDING_GEMMA,
    DISTILBERT,
    MPNET,
    NOMIC_BERT,
    GTE,
    JINA_EMBEDDINGS_V3,
    ELECTRA,
    EUROBERT,
    XLM_ROBERTA_XL,
    ERNIE,
    DEBERTA_V2,
    ALBERT,
    T5_ENCODER,
    GPT_NEO,
    GPT_NEOX,
    GPTJ,
    CODEGEN,
    FALCON,
    PHI,
    STABLELM,
    COHERE,
    COHERE2,
    COHERE_COMPASS,
    COHERE2_MOE,
    OLMO,
    OLMO2,
    OLMO3,
    CHATGLM,
    GLM,
    GLM4,
    EXAONE,
    EXAONE4,
    MINICPM,
    INTERNLM,
    INTERNLM2,
    INTERNLM3,
    HELIUM,
    SEED_OSS,
    LLAMA4,
    NEMOTRON,
    NEMOTRON_H,
    NEMOTRON_NAS,
    ARCEE,
    APERTUS,
    APERTUS_1P5,
    BITNET,
    JAIS2,
    NANOCHAT,
    DIFFLLAMA,
    MPT,
    MIXTRAL,
    ARIA,
    QWEN2_MOE,
    QWEN3_MOE,
    MELLUM,
    FLINT,
    OLMOE,
    JETMOE,
    PHIMOE,
    DBRX,
    GRANITE_MOE,
    GLM4_MOE,
    GPT_OSS,
    LFM2,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    LFM2_MOE,
    LFM3,
    MAMBA2,
    ZAMBA2,
    GRANITE_MOE_HYBRID,
    BAMBA,
    GLM4_MOE_LITE,
    GLM_MOE_DSA,
    YOUTU,
    AXK1,
    MISTRAL4,
    LONGCAT_FLASH,
    MINICPM3,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    LARA_MINI,
    OLMO_HYBRID,
    KIMI_LINEAR,
    BAILING_HYBRID,
    BAILING_MOE,
    BAILING_MOE_V2,
    SARVAM_MOE,
    SARVAM_MLA,
    DEEPSEEK_MOE,
    MIMO,
    ORION,
    OURO,
    IQUEST_CODER,
    PANGU,
    PANGU_ULTRA,
    MAMBA,
    FALCON_MAMBA,
    JAMBA,
    FALCON_H1,
    MINIMAX,
    MINIMAX_M2,
    ERNIE4_5,
    ERNIE4_5_MOE,
    MINISTRAL3,
    MINISTRAL,
    CWM,
    GRANITE_MOE_SHARED,
    GRANITE_MOE_SWA,
    DOTS1,
    EXAONE_MOE,
    KOLIBRI1,
    AFMOE,
    LAGUNA,
    MIMO_V2,
    SOLAR_OPEN,
    FLEX_OLMO,
    HUNYUAN,
    HUNYUAN_MOE,
    HY_V3,
)
