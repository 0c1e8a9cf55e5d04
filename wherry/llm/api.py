"""Which names of language models may the other parts use?

A name is loaded when it is first used, so that a process pays only for what it uses.
"""

from typing import TYPE_CHECKING

from wherry.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wherry.llm.anthropic.answer import AnthropicError as AnthropicError
    from wherry.llm.anthropic.answer import error_body as error_body
    from wherry.llm.anthropic.routes import MESSAGES as MESSAGES
    from wherry.llm.engine.choice import AUTO as AUTO
    from wherry.llm.engine.choice import choose as choose
    from wherry.llm.engine.choice import facts_of as facts_of
    from wherry.llm.engine.choice import here as here
    from wherry.llm.engine.choice import is_local as is_local
    from wherry.llm.engine.memory import Needs as Needs
    from wherry.llm.engine.memory import cpu_cache_bytes as cpu_cache_bytes
    from wherry.llm.engine.memory import free_bytes as free_bytes
    from wherry.llm.engine.memory import needs_of as needs_of
    from wherry.llm.engines import TargetError as TargetError
    from wherry.llm.engines import is_checkpoint as is_checkpoint
    from wherry.llm.engines import language_model as language_model
    from wherry.llm.engines import with_engine as with_engine
    from wherry.llm.engines import with_options as with_options
    from wherry.llm.openai.chat_request import MOST_ROLE_CHARS as MOST_ROLE_CHARS
    from wherry.llm.openai.errors import OpenAIError as OpenAIError
    from wherry.llm.openai.errors import error_object as error_object
    from wherry.llm.openai.errors import speaks_openai as speaks_openai
    from wherry.llm.openai.models import ABLE as ABLE
    from wherry.llm.openai.models import abilities as abilities
    from wherry.llm.openai.models import vector_fit as vector_fit
    from wherry.llm.openai.task_requests import MOST_ROWS as MOST_ROWS
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "anthropic.answer": "AnthropicError error_body",
            "anthropic.routes": "MESSAGES",
            "engine.choice": "AUTO choose facts_of here is_local",
            "engine.memory": "Needs cpu_cache_bytes free_bytes needs_of",
            "engines": "TargetError is_checkpoint language_model with_engine with_options",
            "openai.chat_request": "MOST_ROLE_CHARS",
            "openai.errors": "OpenAIError error_object speaks_openai",
            "openai.models": "ABLE abilities vector_fit",
            "openai.task_requests": "MOST_ROWS",
        },
    )
