"""Lists of many things, a page at a time: searched, sorted and cut on the server, from what is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from moldau.console.visit import Visit

T = TypeVar("T")
PER_PAGE = 50
PER_PAGE_MAX = 500
_KEPT = ("name", "topic", "q", "show", "reason", "page", "members", "groups", "short")  # of an address, in its links


@dataclass(slots=True, frozen=True)
class Listed(Generic[T]):
    rows: Sequence[T]
    total: int  # that match
    page: int
    pages: int
    sort: str
    is_descending: bool
    params: Mapping[str, str]  # of the address, without page and sort
    page_name: str = "page"  # two lists of one page turn their own

    def link(self, **changes: str | int) -> str:
        """The same list with another page or order, as a query string."""
        sort = f"-{self.sort}" if self.is_descending else self.sort
        merged = {**self.params, "sort": sort, "page": str(self.page), **{k: str(v) for k, v in changes.items()}}
        merged[self.page_name] = merged.pop("page")
        return "?" + urlencode(
            {name: value for name, value in merged.items() if value and (value != "1" or name != self.page_name)}
        )

    def sort_link(self, column: str, *, descending_first: bool = False) -> str:
        is_down = not self.is_descending if column == self.sort else descending_first
        return self.link(sort=f"-{column}" if is_down else column, page=1)

    def order(self, column: str) -> str:
        """For aria-sort."""
        if column != self.sort:
            return "none"
        return "descending" if self.is_descending else "ascending"


def searched(items: Iterable[T], text: str, name: Callable[[T], str]) -> list[T]:
    """Those whose name has all the words."""
    words = text.lower().split()
    if not words:
        return list(items)
    return [item for item in items if all(word in name(item).lower() for word in words)]


def listed(
    visit: Visit,
    items: Sequence[T],
    orders: Mapping[str, Callable[[T], Any]] | None = None,
    default: str = "",
    *,
    page_name: str = "page",
) -> Listed[T]:
    """A page of them; without orders they stay as they come."""
    wanted = visit.query("sort", default) if orders else ""
    is_descending = wanted.startswith("-")
    column = wanted.lstrip("-")
    if orders and column not in orders:
        column, is_descending = default.lstrip("-"), default.startswith("-")
    if orders and (column != "name" or is_descending):  # they come by name
        items = sorted(items, key=orders[column], reverse=is_descending)
    per_page = visit.number("per_page", PER_PAGE, 1, PER_PAGE_MAX)
    pages = max(1, -(-len(items) // per_page))
    page = visit.number(page_name, 1, 1, pages)
    first = (page - 1) * per_page
    params = {name: visit.query(name) for name in _KEPT if name != page_name and visit.query(name)}
    if per_page != PER_PAGE:
        params["per_page"] = str(per_page)
    return Listed(items[first : first + per_page], len(items), page, pages, column, is_descending, params, page_name)
