"""How do models written for Triton's Python backend run here unchanged?

`pb_utils` is what they import as `triton_python_backend_utils`.
"""

from wherry.triton.python.model import PythonBackendModel
from wherry.triton.python.stub import pb_utils

__all__ = ["PythonBackendModel", "pb_utils"]
