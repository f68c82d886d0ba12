"""`module:function` names into Python objects, looked for beside the pipeline file first."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class FunctionError(Exception):
    """Why a name does not lead to an object, and the fix, in one line."""


def _ship(module: ModuleType, folder: str) -> None:
    """Executors have no pipeline folder: what lies there travels with the functions, instead of being imported."""
    from pyspark import cloudpickle

    file = getattr(module, "__file__", None)
    if file and Path(file).resolve().is_relative_to(Path(folder).resolve()) and "site-packages" not in file:
        register: Any = cloudpickle.register_pickle_by_value
        register(module)


def find(name: str, folder: str) -> Any:
    """The object a `module:attribute` names. Modules beside the pipeline file are importable, as scripts' are."""
    module_name, _, attribute = name.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise FunctionError(
                f"there is no module {module_name!r}; put {module_name.replace('.', '/')}.py beside the pipeline file, "
                "or install it"
            ) from None
        raise FunctionError(f"module {module_name!r} needs {error.name!r}; install it") from None
    except Exception as error:  # whatever the user's module raises while it is imported
        raise FunctionError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    _ship(module, folder)
    try:
        return getattr(module, attribute)
    except AttributeError:
        from moldau.spark.suggestions import did_you_mean

        known = [each for each in vars(module) if callable(getattr(module, each)) and not each.startswith("_")]
        raise FunctionError(f"module {module_name!r} has no {attribute!r}; {did_you_mean(attribute, known)}") from None
