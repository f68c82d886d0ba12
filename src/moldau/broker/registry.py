"""Which APIs this node serves: those with a file in `handlers`. Files are imported when first called."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from moldau.broker import handlers
from moldau.wire import Api, apis


@dataclass(slots=True)
class ServedApi:
    """An API and the file that serves it."""

    api: Api
    module_name: str
    handle: Callable[..., Any] | None = field(default=None)
    takes_frame: bool = False

    def load(self) -> Callable[..., Any]:
        """The handler's function, imported on first use."""
        module = importlib.import_module(f"moldau.broker.handlers.{self.module_name}")
        self.takes_frame = hasattr(module, "handle_frame")
        handle: Callable[..., Any] = module.handle_frame if self.takes_frame else module.handle
        self.handle = handle
        return handle


@cache
def served_apis() -> dict[int, ServedApi]:
    """By API key."""
    modules = {module.name for module in pkgutil.iter_modules(handlers.__path__)}
    served = {key: ServedApi(api, name) for key, api in apis().items() if (name := _file_name(api.name)) in modules}
    strays = modules - {each.module_name for each in served.values()} - {"common"}
    assert not strays, f"handlers that belong to no API: {sorted(strays)}"
    return served


def _file_name(api_name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()
