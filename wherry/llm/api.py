"""What may the other parts use of language models?

A name is loaded when it is first asked for, so that a process pays only for what it uses.
"""

from typing import TYPE_CHECKING

from wherry.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wherry.llm.anthropic.errors import AnthropicError as AnthropicError
    from wherry.llm.anthropic.errors import error_body as error_body
    from wherry.llm.anthropic.routes import MESSAGES as MESSAGES
    from wherry.llm.engine.choice import AUTO as AUTO
    from wherry.llm.engine.choice import choose as choose
    from wherry.llm.engine.choice import facts_of as facts_of
    from wherry.llm.engine.choice import here as here
    from wherry.llm.engine.choice import is_local as is_local
    from wherry.llm.engine.memory import Needs as Needs
    from wherry.llm.engine.memory import free_bytes as free_bytes
    from wherry.llm.engine.memory import needs_of as needs_of
    from wherry.llm.engine.memory import parts_on_cpu as parts_on_cpu
    from wherry.llm.engine.memory import total_bytes as total_bytes
    from wherry.llm.engines import TargetError as TargetError
    from wherry.llm.engines import is_checkpoint as is_checkpoint
    from wherry.llm.engines import language_model as language_model
    from wherry.llm.engines import with_engine as with_engine
    from wherry.llm.engines import with_options as with_options
    from wherry.llm.openai.embedding import CUTS as CUTS
    from wherry.llm.openai.errors import OpenAIError as OpenAIError
    from wherry.llm.openai.errors import error_object as error_object
    from wherry.llm.openai.fields.beside import BESIDE as BESIDE
    from wherry.llm.openai.fields.chat_messages import MOST_ROLE_CHARS as MOST_ROLE_CHARS
    from wherry.llm.openai.fields.embeddings import MOST_INPUTS as MOST_INPUTS
    from wherry.llm.openai.fields.scores import MOST_PAIRS as MOST_PAIRS
    from wherry.llm.openai.fits import VectorFit as VectorFit
    from wherry.llm.openai.fits import vector_fit as vector_fit
    from wherry.llm.openai.models import ABLE as ABLE
    from wherry.llm.openai.models import abilities as abilities
    from wherry.llm.openai.paths import speaks_openai as speaks_openai
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "anthropic.errors": "AnthropicError error_body",
            "anthropic.routes": "MESSAGES",
            "engine.choice": "AUTO choose facts_of here is_local",
            "engine.memory": "Needs free_bytes needs_of parts_on_cpu total_bytes",
            "engines": "TargetError is_checkpoint language_model with_engine with_options",
            "openai.embedding": "CUTS",
            "openai.errors": "OpenAIError error_object",
            "openai.fields.beside": "BESIDE",
            "openai.fields.embeddings": "MOST_INPUTS",
            "openai.fields.chat_messages": "MOST_ROLE_CHARS",
            "openai.fields.scores": "MOST_PAIRS",
            "openai.fits": "VectorFit vector_fit",
            "openai.models": "ABLE abilities",
            "openai.paths": "speaks_openai",
        },
    )
