"""How do models written for Triton's Python backend run here unchanged?

`pb_utils` is what they import as `triton_python_backend_utils`.
"""

from wherry.backends.triton_python.model import PythonBackendModel
from wherry.backends.triton_python.stub import pb_utils

__all__ = ["PythonBackendModel", "pb_utils"]
