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


@dataclass(slots=True, frozen=True)
class Listed(Generic[T]):
    rows: Sequence[T]
    total: int  # that match
    page: int
    pages: int
    sort: str
    is_descending: bool
    params: Mapping[str, str]  # of the address, without page and sort

    def link(self, **changes: str | int) -> str:
        """The same list with another page or order, as a query string."""
        sort = f"-{self.sort}" if self.is_descending else self.sort
        merged = {**self.params, "sort": sort, "page": str(self.page), **{k: str(v) for k, v in changes.items()}}
        return "?" + urlencode(
            {name: value for name, value in merged.items() if value not in ("", "1") or name != "page"}
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
    items: list[T],
    orders: Mapping[str, Callable[[T], Any]],
    default: str,
    *,
    keep: Sequence[str] = ("q", "show"),
) -> Listed[T]:
    wanted = visit.query("sort", default)
    is_descending = wanted.startswith("-")
    column = wanted.lstrip("-")
    if column not in orders:
        column, is_descending = default.lstrip("-"), default.startswith("-")
    if column != "name" or is_descending:  # they come by name
        items = sorted(items, key=orders[column], reverse=is_descending)
    per_page = visit.number("per_page", PER_PAGE, 1, PER_PAGE_MAX)
    pages = max(1, -(-len(items) // per_page))
    page = visit.number("page", 1, 1, pages)
    first = (page - 1) * per_page
    params = {name: visit.query(name) for name in keep if visit.query(name)}
    if per_page != PER_PAGE:
        params["per_page"] = str(per_page)
    return Listed(items[first : first + per_page], len(items), page, pages, column, is_descending, params)
