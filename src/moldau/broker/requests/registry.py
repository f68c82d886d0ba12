"""Which APIs this node serves: those with a file in `handlers`, on the kind of listener Kafka serves them.

Files are imported when first called.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from moldau.broker.requests import handlers
from moldau.wire import Api, apis

ListenerKind = Literal["broker", "controller"]


@dataclass(slots=True)
class ServedApi:
    """An API and the file that serves it."""

    api: Api
    module_name: str
    handle: Callable[..., Any] | None = field(default=None)
    takes_frame: bool = False
    kind: ListenerKind = "broker"

    def load(self) -> Callable[..., Any]:
        """The handler's function, imported on first use."""
        module = importlib.import_module(f"moldau.broker.requests.handlers.{self.module_name}")
        own = getattr(module, f"handle_{self.kind}_frame", None)
        taking_frame: Callable[..., Any] | None = own or getattr(module, "handle_frame", None)
        self.takes_frame = taking_frame is not None
        self.handle = taking_frame or module.handle
        return self.handle


@cache
def served_apis() -> dict[int, ServedApi]:
    """By API key."""
    modules = {module.name for module in pkgutil.iter_modules(handlers.__path__)}
    served = {key: ServedApi(api, name) for key, api in apis().items() if (name := _file_name(api.name)) in modules}
    strays = modules - {each.module_name for each in served.values()} - {"common"}
    assert not strays, f"handlers that belong to no API: {sorted(strays)}"
    return served


@cache
def served_on(kind: ListenerKind) -> dict[int, ServedApi]:
    """By API key, what is served on such a listener."""
    served = {key: each for key, each in served_apis().items() if kind in each.api.listeners}
    return {key: replace(each, handle=None, kind=kind) for key, each in served.items()}


def _file_name(api_name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()
