"""What may the other parts use of model repositories?

A name is imported when it is first used, so that a process pays only for what it uses.
"""

from typing import TYPE_CHECKING

from wherry.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wherry.triton.backends.load import FILES as FILES
    from wherry.triton.backends.load import backend_for as backend_for
    from wherry.triton.backends.load import not_here as not_here
    from wherry.triton.backends.repository_model import RepositoryModel as RepositoryModel
    from wherry.triton.backends.shared import FileTensor as FileTensor
    from wherry.triton.backends.shared import complete as complete
    from wherry.triton.backends.shared import parameter_text as parameter_text
    from wherry.triton.loading.control import ModelControl as ModelControl
    from wherry.triton.loading.control import RepositoryWatch as RepositoryWatch
    from wherry.triton.loading.folders import RepositoryFolders as RepositoryFolders
    from wherry.triton.loading.loader import log_ready as log_ready
    from wherry.triton.repository.ensemble_graph import members as members
    from wherry.triton.repository.json_form import filled as filled
    from wherry.triton.repository.json_form import to_json as to_json
    from wherry.triton.repository.layout import Fingerprint as Fingerprint
    from wherry.triton.repository.layout import Found as Found
    from wherry.triton.repository.layout import fingerprint as fingerprint
    from wherry.triton.repository.layout import is_name as is_name
    from wherry.triton.repository.layout import look as look
    from wherry.triton.repository.layout import names as names
    from wherry.triton.repository.mapping import triton_config as triton_config
    from wherry.triton.repository.mirror import is_remote as is_remote
    from wherry.triton.repository.mirror import source_of as source_of
    from wherry.triton.repository.normalise import platform_of as platform_of
    from wherry.triton.repository.triton_config import TritonConfig as TritonConfig
    from wherry.triton.repository.triton_config import TritonInput as TritonInput
    from wherry.triton.repository.triton_config import TritonOutput as TritonOutput
    from wherry.triton.repository.triton_config import (
        TritonTransactionPolicy as TritonTransactionPolicy,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "backends.load": "FILES backend_for not_here",
            "backends.repository_model": "RepositoryModel",
            "backends.shared": "FileTensor complete parameter_text",
            "loading.control": "ModelControl RepositoryWatch",
            "loading.folders": "RepositoryFolders",
            "loading.loader": "log_ready",
            "repository.ensemble_graph": "members",
            "repository.json_form": "filled to_json",
            "repository.layout": "Fingerprint Found fingerprint is_name look names",
            "repository.mapping": "triton_config",
            "repository.mirror": "is_remote source_of",
            "repository.normalise": "platform_of",
            "repository.triton_config": (
                "TritonConfig TritonInput TritonOutput TritonTransactionPolicy"
            ),
        },
    )
