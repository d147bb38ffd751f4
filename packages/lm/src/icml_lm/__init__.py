"""Small language models, chat clients and token statistics that the language packages share."""

from typing import TYPE_CHECKING, Any

from icml_core import lazy

if TYPE_CHECKING:
    from icml_lm.adapters import lora as lora
    from icml_lm.adapters import merge as merge
    from icml_lm.arms import ArmsLog as ArmsLog
    from icml_lm.arms import NonFiniteArm as NonFiniteArm
    from icml_lm.arms import train_many as train_many
    from icml_lm.artefacts import artefact as artefact
    from icml_lm.artefacts import base_names as base_names
    from icml_lm.artefacts import register_base as register_base
    from icml_lm.batching import chat_prompt as chat_prompt
    from icml_lm.batching import collate as collate
    from icml_lm.batching import pack as pack
    from icml_lm.batching import prompt_and_answer as prompt_and_answer
    from icml_lm.batching import supervised as supervised
    from icml_lm.cache import KeyValueCache as KeyValueCache
    from icml_lm.chat_models import chat_client as chat_client
    from icml_lm.client import BadReplyError as BadReplyError
    from icml_lm.client import BudgetExhaustedError as BudgetExhaustedError
    from icml_lm.client import ChatClient as ChatClient
    from icml_lm.client import ChatError as ChatError
    from icml_lm.client import ChatRefusedError as ChatRefusedError
    from icml_lm.client import ChatTimeoutError as ChatTimeoutError
    from icml_lm.client import ChatUnavailableError as ChatUnavailableError
    from icml_lm.client import Completion as Completion
    from icml_lm.client import Request as Request
    from icml_lm.decoder import Head as Head
    from icml_lm.decoder import head_of as head_of
    from icml_lm.decoder import hidden_and_head as hidden_and_head
    from icml_lm.embed import SentenceEncoder as SentenceEncoder
    from icml_lm.embed import find_minilm as find_minilm
    from icml_lm.generation import Gen as Gen
    from icml_lm.generation import Text as Text
    from icml_lm.generation import generate as generate
    from icml_lm.generation import generate_text as generate_text
    from icml_lm.gym_text import GymTextEnv as GymTextEnv
    from icml_lm.hooks import SiteError as SiteError
    from icml_lm.model_names import ModelName as ModelName
    from icml_lm.models import Loaded as Loaded
    from icml_lm.models import freeze as freeze
    from icml_lm.models import frozen_copy as frozen_copy
    from icml_lm.models import load as load
    from icml_lm.models import weight_hash as weight_hash
    from icml_lm.openai_client import OpenAIClient as OpenAIClient
    from icml_lm.rollouts import Episode as Episode
    from icml_lm.rollouts import rollout as rollout
    from icml_lm.score import ScoredChoice as ScoredChoice
    from icml_lm.score import choose as choose
    from icml_lm.score import shared_prefix_logprobs as shared_prefix_logprobs
    from icml_lm.scripted_client import ScriptedClient as ScriptedClient
    from icml_lm.scripted_client import register_script as register_script
    from icml_lm.smollm2 import MissingSmolLM2 as MissingSmolLM2
    from icml_lm.smollm2 import find_smollm2 as find_smollm2
    from icml_lm.stats import Interval as Interval
    from icml_lm.stats import SequentialTest as SequentialTest
    from icml_lm.stats import holm as holm
    from icml_lm.stats import mcnemar as mcnemar
    from icml_lm.stats import paired_bootstrap as paired_bootstrap
    from icml_lm.stats import wilson as wilson
    from icml_lm.text_env import Obs as Obs
    from icml_lm.text_env import Step as Step
    from icml_lm.text_env import TextEnv as TextEnv
    from icml_lm.text_env import make_env as make_env
    from icml_lm.tiny import TinyConfig as TinyConfig
    from icml_lm.tiny import TinyLM as TinyLM
    from icml_lm.tiny import TinyOutput as TinyOutput
    from icml_lm.tiny import token_loss as token_loss
    from icml_lm.token_statistics import TokenStats as TokenStats
    from icml_lm.token_statistics import token_stats as token_stats
    from icml_lm.tokenizers import ByteTokenizer as ByteTokenizer
    from icml_lm.tokenizers import SymbolTokenizer as SymbolTokenizer
    from icml_lm.tokenizers import load_tokenizer as load_tokenizer
    from icml_lm.training import NonFiniteLoss as NonFiniteLoss
    from icml_lm.training import TrainLog as TrainLog
    from icml_lm.training import train as train
    from icml_lm.transformers_client import TransformersClient as TransformersClient
    from icml_lm.wrappers import Budget as Budget
    from icml_lm.wrappers import Cached as Cached
    from icml_lm.wrappers import Recorded as Recorded
    from icml_lm.wrappers import Retry as Retry
    from icml_lm.wrappers import Usage as Usage

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "ArmsLog": "arms",
        "BadReplyError": "client",
        "Budget": "wrappers",
        "BudgetExhaustedError": "client",
        "ByteTokenizer": "tokenizers",
        "Cached": "wrappers",
        "ChatClient": "client",
        "ChatError": "client",
        "ChatRefusedError": "client",
        "ChatTimeoutError": "client",
        "ChatUnavailableError": "client",
        "Completion": "client",
        "Episode": "rollouts",
        "Gen": "generation",
        "GymTextEnv": "gym_text",
        "Head": "decoder",
        "Interval": "stats",
        "KeyValueCache": "cache",
        "Loaded": "models",
        "MissingSmolLM2": "smollm2",
        "ModelName": "model_names",
        "NonFiniteArm": "arms",
        "NonFiniteLoss": "training",
        "Obs": "text_env",
        "OpenAIClient": "openai_client",
        "Recorded": "wrappers",
        "Request": "client",
        "Retry": "wrappers",
        "ScoredChoice": "score",
        "ScriptedClient": "scripted_client",
        "SentenceEncoder": "embed",
        "SequentialTest": "stats",
        "SiteError": "hooks",
        "Step": "text_env",
        "SymbolTokenizer": "tokenizers",
        "Text": "generation",
        "TextEnv": "text_env",
        "TinyConfig": "tiny",
        "TinyLM": "tiny",
        "TinyOutput": "tiny",
        "TokenStats": "token_statistics",
        "TrainLog": "training",
        "TransformersClient": "transformers_client",
        "Usage": "wrappers",
        "artefact": "artefacts",
        "base_names": "artefacts",
        "chat_client": "chat_models",
        "chat_prompt": "batching",
        "choose": "score",
        "collate": "batching",
        "find_minilm": "embed",
        "find_smollm2": "smollm2",
        "freeze": "models",
        "frozen_copy": "models",
        "generate": "generation",
        "generate_text": "generation",
        "head_of": "decoder",
        "hidden_and_head": "decoder",
        "holm": "stats",
        "load": "models",
        "load_tokenizer": "tokenizers",
        "lora": "adapters",
        "make_env": "text_env",
        "mcnemar": "stats",
        "merge": "adapters",
        "pack": "batching",
        "paired_bootstrap": "stats",
        "prompt_and_answer": "batching",
        "register_base": "artefacts",
        "register_script": "scripted_client",
        "rollout": "rollouts",
        "shared_prefix_logprobs": "score",
        "supervised": "batching",
        "token_loss": "tiny",
        "token_stats": "token_statistics",
        "train": "training",
        "train_many": "arms",
        "weight_hash": "models",
        "wilson": "stats",
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name not in ("icml_kernels", "jaxtyping", "safetensors", "torch"):
            raise
        from icml_core.errors import NeedsError, install_command

        hint = install_command("icml-lm[torch]")
        raise NeedsError(f"icml-lm[torch] for icml_lm.{name}", hint=hint) from error
